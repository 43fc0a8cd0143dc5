"""Graph cuts in several processes: the plain loop of one process, started by torchrun.

torchrun --nproc-per-node 2 examples/distributed.py
torchrun --nproc-per-node 2 examples/distributed.py --joint 5     # the network below is trained first, by DDP
python examples/distributed.py                                    # one process

Saves after every exact pass and goes on from there if it is started again, by any number of processes; so does
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --max-restarts 3 ... after a process has died (docs/distributed.md).
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    DualState,
    GapBatchSampler,
    Graphs,
    LinearGraph,
    StructuredHinge,
    certify,
    grid_edges,
    in_order,
    load_checkpoint,
    save_checkpoint,
)
from torchssvm.solvers import Certificate

CHANNELS = 16  # of the network


class Discs(Dataset):
    """Noisy pictures of a disc, and its place. Pictures are made when they are read."""

    def __init__(self, n: int, side: int) -> None:
        self.n, self.side = n, side

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int]:
        generator = torch.Generator().manual_seed(i)
        place = torch.stack(torch.meshgrid(*[torch.linspace(0.0, 1.0, self.side)] * 2, indexing="ij"))
        centre = 0.3 + 0.4 * torch.rand(2, 1, 1, generator=generator)
        disc = ((place - centre).norm(dim=0) < 0.25).long()
        return disc + 1.5 * torch.randn(disc.shape, generator=generator), disc.flatten(), i

    def collate(self, items: list[tuple[Tensor, Tensor, int]]) -> Batch:
        """The batch of some pictures."""
        pictures, discs, index = zip(*items, strict=True)
        return Batch(torch.stack(pictures), torch.stack(discs), torch.tensor(index))


class Cuts(nn.Module):
    """A network that describes every pixel, and graph cuts on top of it."""

    def __init__(self, side: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, CHANNELS, 5, padding=2), nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2)]
        self.network = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh())
        self.head = LinearGraph(CHANNELS + 1, 1)
        self.edges = grid_edges(side, side)

    def forward(self, pictures: Tensor) -> dict[str, Tensor]:
        """Potentials of pictures [B, H, W]."""
        nodes = self.network(pictures.unsqueeze(1)).flatten(2).transpose(1, 2)
        nodes = torch.cat([nodes, torch.ones_like(nodes[:, :, :1])], 2)
        edges = self.edges.expand(len(nodes), -1, 2)
        return self.head(Graphs(nodes, nodes.new_ones(*edges.shape[:2], 1), edges))


def train_jointly(model: Cuts, data: Discs, lam: float, batch_size: int, epochs: int) -> None:
    """Adam on network and head; DDP averages the gradients of the processes, each of which reads other pictures."""
    several = distributed.is_initialized()
    together = DistributedDataParallel(model) if several else model
    sampler = DistributedSampler(data) if several else None
    loader = DataLoader(data, batch_size, shuffle=not several, sampler=sampler, collate_fn=data.collate)
    hinge, adam = StructuredHinge(model.head.structure), torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch in loader:
            adam.zero_grad()
            squares = model.head.unary.square().sum() + model.head.pairwise.square().sum()
            (hinge(together(batch.x), batch.y) + lam / 2 * squares).backward()
            adam.step()
            with torch.no_grad():
                model.head.pairwise.clamp_(min=0.0)


def main(
    pictures: PositiveInt = 128,
    side: PositiveInt = 24,
    lam: PositiveFloat = 100.0,
    gap: PositiveFloat = 0.05,
    batch_size: PositiveInt = 2,
    joint: NonNegativeInt = 0,
    seed: int = 0,
    checkpoint: Path = Path("runs/distributed.pt"),
) -> Certificate:
    """Train graph cuts to a certified gap.

    Args:
        pictures: How many.
        side: Their height and width.
        lam: Regularisation.
        gap: Stop at this certified gap.
        batch_size: Pictures of a step and process.
        joint: Epochs of joint training of network and head, before the network is frozen.
        seed: Of the network and the sampler.
        checkpoint: Is gone on from if it exists.
    """
    torch.set_num_threads(1)  # one core for each process
    if "RANK" in os.environ:  # started by torchrun
        distributed.init_process_group("gloo", timeout=timedelta(minutes=2))
    first = int(os.environ.get("RANK", 0)) == 0
    torch.manual_seed(seed)
    data, model = Discs(pictures, side), Cuts(side)
    if joint and not checkpoint.exists():
        train_jointly(model, data, lam, batch_size, joint)
    model.network.requires_grad_(False)
    head = model.head
    nn.init.zeros_(head.unary)  # a new dual stands for zero weights
    nn.init.zeros_(head.pairwise)

    dual = DualState.for_head(head, len(data), lam)
    loss = BlockGap(dual)
    optimizer = BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)
    sampler = GapBatchSampler(dual, batch_size=batch_size, seed=seed)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
    objects = {"network": model.network, "optimizer": optimizer, "sampler": sampler}
    if checkpoint.exists():
        load_checkpoint(checkpoint, **objects)
    certificate = certify(model, dual, in_order(data))
    while certificate.gap > gap:
        for _ in range(5):
            for batch in loader:
                optimizer.zero_grad()
                loss(model(batch.x), batch.y, batch.index).backward()
                optimizer.step()
        certificate = certify(model, dual, in_order(data))
        save_checkpoint(checkpoint, **objects)
        if first:
            print(f"{certificate}; {dual.ranks.size} processes, rho {dual.rho:.2f}", flush=True)
    if distributed.is_initialized():
        distributed.destroy_process_group()
    return certificate


if __name__ == "__main__":
    auto_cli(main, as_positional=False)

"""Crosses in noisy images: the label is known, + or ×, and the place is not; learned together with two templates.

Begins with the brightest place of each image. Prints the errors, and draws the templates and the predicted places.

python examples/latent.py --noise 0.3
"""

from pathlib import Path

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from torchssvm import HiddenStates, LinearMulticlass, Multiclass, evaluate, latent, solve
from torchssvm.datasets import LatentCrosses, PaddedDataset


class Templates(nn.Module):
    """The score of each template at each place: patches ``[B, P, 9]`` -> potentials ``[B, 2 P]``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 9))

    def forward(self, x: Tensor) -> Tensor:
        """Of state 2 p + k: template k at place p."""
        return (x @ self.weight.T).flatten(1)


def main(
    lam: PositiveFloat = 0.03,
    noise: NonNegativeFloat = 0.3,
    num_images: PositiveInt = 100,
    seed: int = 0,
    report: Path = Path("runs/latent"),
) -> float:
    """Train two templates, and the places where they are.

    Args:
        lam: Regularisation.
        noise: Standard deviation of the noise; the crosses have pixels of 1.
        num_images: Images for training.
        seed: Of the images.
        report: Folder of the picture.
    """
    torch.set_num_threads(1)
    train = LatentCrosses("train", num_images=num_images, noise=noise, seed=seed)
    test = LatentCrosses("test", num_images=500, noise=noise, seed=seed)
    shows = torch.arange(2 * train.x.shape[1]) % 2
    head, structure = Templates(), HiddenStates(Multiclass(len(shows)), shows)
    print(latent(head, train, lam, structure=structure))

    states = structure.decode(head(test.x))
    error = float((structure.observe(states) != test.y).double().mean())
    right = float((states // 2 == test.places).double().mean())
    pixels, others = (PaddedDataset(data.images.flatten(1), data.y) for data in (train, test))
    solve(linear := LinearMulticlass(pixels.x.shape[1], 2), pixels, 0.1)
    plain = evaluate(linear, linear.structure, others).loss
    print(f"wrong labels {error:.3f}, right places {right:.3f}; a linear classifier of all pixels {plain:.3f} wrong")

    figure = Figure(figsize=(9, 4))
    for number, axes in enumerate(figure.subplots(2, 5).flat):
        template = number % 5 == 0  # the first column has templates, the others have test images
        shown = head.weight.detach()[number // 5].view(3, 3) if template else test.images[number]
        axes.imshow(shown.numpy(), cmap="gray")
        axes.set_title("template" if template else "+×"[int(states[number]) % 2])
        axes.set_axis_off()
        if not template:
            row, column = divmod(int(states[number]) // 2, test.images.shape[1] - 2)
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 3, 3, fill=False, edgecolor="tab:orange", lw=2))
    report.mkdir(parents=True, exist_ok=True)
    figure.savefig(report / "latent.png", dpi=80)
    return error


if __name__ == "__main__":
    auto_cli(main, as_positional=False)

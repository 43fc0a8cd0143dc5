"""Ranking the documents of web queries: linear for two measures, each to a certified gap, and on a small network.

The data is LightGBM's example of lambdarank. Prints NDCG@k and MAP on the test queries, and draws ranked lists.

python examples/ranking.py --gap 0.01
"""

from pathlib import Path

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeInt, PositiveFloat
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import LinearRanking, Ranking, Relative, StructuredHinge, solve
from torchssvm.datasets import RankedLists, RankingScores, ranking_scores
from torchssvm.datasets.ranking.drawing import draw_rankings
from torchssvm.structures.ranking import NDCG, PairSwaps


def main(
    lam: PositiveFloat = 0.03,
    gap: PositiveFloat = 0.01,
    epochs: NonNegativeInt = 30,
    seed: int = 0,
    data: str | None = None,
    report: Path = Path("runs/ranking"),
) -> dict[str, RankingScores]:
    """Train rankers and compare them on the test queries.

    Args:
        lam: Regularisation.
        gap: Stop at this certified gap, as a share of the primal.
        epochs: Passes of joint training over the queries.
        seed: Runs with the same seed are the same.
        data: Folder of ranking.npz; by default TORCHSSVM_DATA.
        report: Folder of the picture.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train, test = RankedLists.lightgbm("train", data), RankedLists.lightgbm("test", data)
    ranked = {}
    for name, measure in {"pairs": PairSwaps(), "NDCG": NDCG()}.items():
        head = LinearRanking(train.in_features, structure=Ranking(measure))
        print(name, solve(head, train, lam, tolerance=Relative(gap)), sep=": ")
        ranked[name] = head.structure.decode(head(test.x, test.lengths))

    # A network below the head, both trained by one Adam on the structured hinge of NDCG.
    network = nn.Sequential(nn.Linear(train.in_features, 64), nn.ReLU(), nn.Dropout(0.5))
    head = LinearRanking(64, structure=Ranking(NDCG()))
    nn.init.normal_(head.weight, std=0.1)
    hinge = StructuredHinge(head.structure)
    adam = torch.optim.Adam([*network.parameters(), *head.parameters()], lr=1e-3)
    loader = DataLoader(train, batch_size=16, shuffle=True, collate_fn=train.collate)
    falling = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, total_iters=max(epochs * len(loader), 1))
    for _ in range(epochs):
        for batch in loader:
            adam.zero_grad()
            loss = hinge(head(network(batch.x), batch.lengths), batch.y)
            (loss + lam / 2 * head.weight.square().sum()).backward()
            adam.step()
            falling.step()
    network.eval()
    ranked["network"] = head.structure.decode(head(network(test.x), test.lengths))

    scores_of = {name: ranking_scores(test.y, places) for name, places in ranked.items()}
    for name, scores in scores_of.items():
        print(f"{name:10} {scores}")
    report.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(9, 7))
    draw_rankings(figure, test.y[:5], {name: places[:5] for name, places in ranked.items()})
    figure.savefig(report / "rankings.png", dpi=100)
    return scores_of


if __name__ == "__main__":
    auto_cli(main, as_positional=False)

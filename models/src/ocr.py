"""Models of handwritten words: the papers' linear chain, and a small CNN that gives its features."""

from __future__ import annotations

from torch import Tensor, nn

from torchssvm.core.arguments import check_whole
from torchssvm.structures.chain.head import LinearChain

LETTERS = 26
ROWS, COLUMNS = 16, 8


def ocr_chain(in_features: int = ROWS * COLUMNS) -> LinearChain:
    """The chain of the papers' OCR experiments: with 128 pixels, 128*26 + 26*26 + 3*26 = 4082 weights.

    Args:
        in_features: Numbers per letter; other than 128 for learned features.

    Example:
        >>> head = ocr_chain()
        >>> sum(weight.numel() for weight in head.parameters())
        4082
    """
    return LinearChain(in_features, LETTERS)


class LetterFeatures(nn.Module):
    """A small convolutional network on the letters of a word: ``[B, N, 128]`` pixels -> ``[B, N, width]`` features.

    Each letter is processed and normalised alone: only the chain connects neighbours, and padding has no effect.

    Args:
        width: Features per letter.
        dropout: Probability of dropping a feature in training.

    Example:
        >>> letters = torch.zeros(2, 5, 128)  # two words of five letters
        >>> LetterFeatures(width=32)(letters).shape
        torch.Size([2, 5, 32])
    """

    def __init__(self, width: int = 64, dropout: float = 0.3) -> None:
        super().__init__()
        self.width = width = check_whole(width, "width")
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.GroupNorm(8, 32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.GroupNorm(8, 32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(64 * (ROWS // 4) * (COLUMNS // 4), width),
            nn.LayerNorm(width),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Pixels ``[B, N, 128]`` -> features ``[B, N, width]``."""
        if x.ndim != 3 or x.shape[2] != ROWS * COLUMNS:
            raise ValueError(f"x must be [B, N, {ROWS * COLUMNS}] pixels, got {list(x.shape)}")
        letters = x.reshape(-1, 1, ROWS, COLUMNS)
        return self.network(letters).view(*x.shape[:2], self.width)


class LetterClassifier(nn.Module):
    """Letter features with a softmax layer, to pretrain them by cross-entropy: ``[B, N, 128]`` -> ``[B, N, 26]``.

    Args:
        features: The features to train.

    Example:
        >>> LetterClassifier(LetterFeatures(width=32))(torch.zeros(2, 5, 128)).shape
        torch.Size([2, 5, 26])
    """

    def __init__(self, features: LetterFeatures) -> None:
        super().__init__()
        self.features = features
        self.output = nn.Linear(features.width, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        """Pixels -> logits."""
        return self.output(self.features(x))

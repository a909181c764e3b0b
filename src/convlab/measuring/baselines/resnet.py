"""ResNet-50 (He et al. 2016) as torchvision has it, without torchvision: a model to measure."""

from __future__ import annotations

from typing import Any

BLOCKS, WIDTHS, CLASSES = (3, 4, 6, 3), (64, 128, 256, 512), 1000
EXPANSION = 4  # of a block's last convolution


def resnet50() -> Any:
    """Return a new ResNet-50 with random weights. Needs PyTorch."""
    from torch import nn

    channels = WIDTHS[0]
    parts: list[Any] = [
        *_convolution(nn, 3, channels, size=7, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    for number, (blocks, width) in enumerate(zip(BLOCKS, WIDTHS, strict=True)):
        for block in range(blocks):
            stride = 2 if number and not block else 1
            parts.append(_block(nn, channels, width, stride))
            channels = EXPANSION * width
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def with_statistics(model: Any, images: Any) -> Any:
    """Return the model in evaluation mode, its batch norms with the statistics of these images, as
    training leaves some: with those of a new model, numbers would shrink or grow from layer to
    layer."""
    from torch import nn

    norms = [one for one in model.modules() if isinstance(one, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0  # the statistics of the next call alone
    model.train()(images)
    return model.eval()


def folded(model: Any) -> Any:
    """Return the model, which is in evaluation mode, with each batch norm folded into the
    convolution before it."""
    from torch import nn

    for sequence in [one for one in model.modules() if isinstance(one, nn.Sequential)]:
        for number in range(len(sequence) - 1):
            layer, norm = sequence[number], sequence[number + 1]
            if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                sequence[number] = nn.utils.fuse_conv_bn_eval(layer, norm)
                sequence[number + 1] = nn.Identity()
    return model


def _convolution(nn: Any, inputs: int, outputs: int, size: int, stride: int = 1) -> list[Any]:
    """Return a convolution that keeps the image's size but for its stride, and its norm."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


def _block(nn: Any, channels: int, width: int, stride: int) -> Any:
    """Return a bottleneck: 1 x 1, 3 x 3, 1 x 1, and the input added."""

    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            outputs = EXPANSION * width
            self.path = nn.Sequential(
                *_convolution(nn, channels, width, size=1),
                nn.ReLU(inplace=True),
                *_convolution(nn, width, width, size=3, stride=stride),
                nn.ReLU(inplace=True),
                *_convolution(nn, width, outputs, size=1),
            )
            same = stride == 1 and channels == outputs
            self.shortcut = (
                nn.Identity()
                if same
                else nn.Sequential(*_convolution(nn, channels, outputs, size=1, stride=stride))
            )

        def forward(self, images: Any) -> Any:
            return nn.functional.relu(self.path(images) + self.shortcut(images))

    return Bottleneck()

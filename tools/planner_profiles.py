"""Generate the profiles that ship with the planner: ``python tools/planner_profiles.py [FOLDER]``.

The networks are Inception V3, ResNet-50, ResNet-101 and VGG-16 with 1001 classes, as in TensorFlow's tf_cnn_benchmarks.
Layer
sizes are from the papers: arXiv 1512.00567 (Inception V3; batch normalization has no scale), 1512.03385 (ResNet, with
the stride of each stage in the first 1x1 convolution) and 1409.1556 (VGG-16, configuration D). FLOPs are two per
multiplication. The throughput was measured on one Pascal GPU with batch 64 and synthetic ImageNet data. It is from the
table that Horovod published in September 2017, and for ResNet-50 from TensorFlow's benchmark page of May 2017.
"""

import sys
from pathlib import Path

from horovod.planner.profile import Layer, Model, profile_of_model, save

FOLDER = Path(__file__).resolve().parents[1] / "src/horovod/planner/profiles"
CLASSES, IMAGENET, BATCH = 1001, 1_281_167, 64
HOROVOD = "one Pascal GPU in Horovod's published 16-GPU table (2017-09)"
TENSORFLOW = "one P100 in TensorFlow's published benchmarks (2017-05)"


class Network:
    """Builds the list of layers of a convolutional network, and tracks the image size."""

    def __init__(self, size: int, channels: int = 3, norm: tuple[str, ...] = ()) -> None:
        self.layers: list[Layer] = []
        self.size, self.channels, self.norm = size, channels, norm

    def conv(
        self, filters: int, kernel: int | tuple[int, int], stride: int = 1, valid: bool = False, inputs: int = 0
    ) -> None:
        """Add a convolution of the current output. ``inputs`` overrides the number of input channels."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        self.pool(max(height, width), stride, valid)
        weights = height * width * (inputs or self.channels) * filters
        parameters = {"weights": weights, **dict.fromkeys(self.norm or ("biases",), filters)}
        self.layers.append(Layer(f"conv{len(self.layers)}", parameters, 2.0 * weights * self.size**2))
        self.channels = filters

    def pool(self, kernel: int, stride: int, valid: bool = False) -> None:
        """Reduce the image size in the same way as a pooling layer."""
        self.size = -(-(self.size - (kernel - 1 if valid else 0)) // stride)

    def dense(self, outputs: int) -> None:
        """Add a fully connected layer."""
        weights = self.size**2 * self.channels * outputs
        self.layers.append(Layer(f"fc{len(self.layers)}", {"weights": weights, "biases": outputs}, 2.0 * weights))
        self.size, self.channels = 1, outputs

    def branches(self, *branches: tuple[tuple[int, int | tuple[int, int], int], ...], passed: int = 0) -> None:
        """Add an Inception module with parallel branches.

        Args:
            *branches: Convolutions of each branch, as (filters, kernel, stride). A negative number of filters marks a
                convolution that has the same input as the one before it; the outputs of both are concatenated.
            passed: Number of channels that a pooling branch passes through unchanged.
        """
        size, channels, output = self.size, self.channels, passed
        for branch in branches:
            self.size, self.channels = size, channels
            source = channels
            for index, (filters, kernel, stride) in enumerate(branch):
                source = source if filters < 0 else self.channels
                self.conv(abs(filters), kernel, stride, stride > 1, source)
                if index + 1 == len(branch) or branch[index + 1][0] < 0:
                    output += abs(filters)
        self.channels = output


def vgg16() -> Network:
    """Return the layers of VGG-16 (configuration D)."""
    net = Network(224)
    for filters, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            net.conv(filters, 3)
        net.pool(2, 2)
    for outputs in (4096, 4096, CLASSES):
        net.dense(outputs)
    return net


def resnet(blocks: tuple[int, ...]) -> Network:
    """Return the layers of a ResNet. ``blocks`` is the number of bottleneck blocks per stage."""
    net = Network(224, norm=("gamma", "beta"))
    net.conv(64, 7, 2)
    net.pool(3, 2)
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            size, channels = net.size, net.channels
            if block == 0:
                net.conv(4 * width, 1, stride)
                net.size, net.channels = size, channels
            net.conv(width, 1, stride)
            net.conv(width, 3)
            net.conv(4 * width, 1)
    net.size = 1
    net.dense(CLASSES)
    return net


def inception3() -> Network:
    """Return the layers of Inception V3 without the auxiliary classifier."""
    net = Network(299, norm=("beta",))
    net.conv(32, 3, 2, valid=True)
    net.conv(32, 3, valid=True)
    net.conv(64, 3)
    net.pool(3, 2, valid=True)
    net.conv(80, 1, valid=True)
    net.conv(192, 3, valid=True)
    net.pool(3, 2, valid=True)
    for pooled in (32, 64, 64):
        net.branches(
            ((64, 1, 1),),
            ((48, 1, 1), (64, 5, 1)),
            ((64, 1, 1), (96, 3, 1), (96, 3, 1)),
            ((pooled, 1, 1),),
        )
    net.branches(((384, 3, 2),), ((64, 1, 1), (96, 3, 1), (96, 3, 2)), passed=net.channels)
    for n in (128, 160, 160, 192):
        net.branches(
            ((192, 1, 1),),
            ((n, 1, 1), (n, (1, 7), 1), (192, (7, 1), 1)),
            ((n, 1, 1), (n, (7, 1), 1), (n, (1, 7), 1), (n, (7, 1), 1), (192, (1, 7), 1)),
            ((192, 1, 1),),
        )
    net.branches(
        ((192, 1, 1), (320, 3, 2)),
        ((192, 1, 1), (192, (1, 7), 1), (192, (7, 1), 1), (192, 3, 2)),
        passed=net.channels,
    )
    for _ in range(2):
        net.branches(
            ((320, 1, 1),),
            ((384, 1, 1), (384, (1, 3), 1), (-384, (3, 1), 1)),
            ((448, 1, 1), (384, 3, 1), (384, (1, 3), 1), (-384, (3, 1), 1)),
            ((192, 1, 1),),
        )
    net.size = 1
    net.dense(CLASSES)
    return net


NETWORKS = {
    "inception3": ("Inception V3", inception3(), 134.4, HOROVOD),
    "resnet50": ("ResNet-50", resnet((3, 4, 6, 3)), 219.0, TENSORFLOW),
    "resnet101": ("ResNet-101", resnet((3, 4, 23, 3)), 119.4, HOROVOD),
    "vgg16": ("VGG-16", vgg16(), 130.9, HOROVOD),
}
"""By name of the profile: title, layers, images per second, their source."""


def main(folder: Path = FOLDER) -> None:
    """Write the profiles of all networks to a folder."""
    for name, (title, net, throughput, source) in NETWORKS.items():
        model = Model(title, net.layers, dataset=IMAGENET)
        save(profile_of_model(model, BATCH, throughput, source), folder / f"{name}.json")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

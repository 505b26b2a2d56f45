"""Four networks as their gradients: sizes, and when the backward pass has each of them ready.

Shapes are those of the published networks: VGG-16 (arXiv:1409.1556, configuration D),
Inception V3 (arXiv:1512.00567, without the auxiliary head), ResNet-101 (arXiv:1512.03385) and a
transformer encoder of 12 layers of width 768 (arXiv:1810.04805, "base").

When a gradient is ready is derived, not measured: the backward pass visits the layers in reverse,
and each takes time in proportion to its multiplications and additions in the forward pass.

Step times are assumptions, for one P100-class GPU in float32 at a batch of 64. Images per second
of a P100 with TensorFlow's benchmark scripts in 2017, as published with them: Inception V3 142,
VGG-16 154, ResNet-50 219, ResNet-152 91.8. ResNet-101 is interpolated between the last two by
operations: 130. The transformer, at 128 tokens a sample, is taken to sustain 5.5 of the GPU's 9.3
TFLOP/s. A third of a step is forward, the rest backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

BATCH = 64
_FORWARD_SHARE = 1 / 3
_TOKENS_PER_SAMPLE = 128
_TRANSFORMER_FLOP_PER_S = 5.5e12


@dataclass(frozen=True)
class Gradient:
    """One gradient.

    Attributes:
        name: of the parameter.
        elements: float32 numbers in it.
        ready: when the backward pass has it, as a fraction of the backward pass's time.
    """

    name: str
    elements: int
    ready: float


@dataclass(frozen=True)
class Model:
    """One network's training step on one GPU.

    Attributes:
        name: as it is called on the command line.
        batch: samples per step.
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass.
        gradients: in the order in which they become ready.
    """

    name: str
    batch: int
    forward_s: float
    backward_s: float
    gradients: tuple[Gradient, ...]

    @property
    def elements(self) -> int:
        """Float32 numbers in all gradients."""
        return sum(gradient.elements for gradient in self.gradients)

    @property
    def step_s(self) -> float:
        """Seconds of a step without communication."""
        return self.forward_s + self.backward_s

    def faster(self, factor: float) -> Model:
        """The same network on a GPU that computes this many times as fast."""
        return replace(self, forward_s=self.forward_s / factor, backward_s=self.backward_s / factor)


@dataclass(frozen=True)
class _Layer:
    """Parameters whose gradients become ready together, and multiplications in the forward pass."""

    parameters: tuple[tuple[str, int], ...]
    multiplications: float


class _Network:
    """Collects layers in the order of the forward pass."""

    def __init__(self) -> None:
        self.layers: list[_Layer] = []

    def conv(
        self,
        name: str,
        channels: tuple[int, int],
        kernel: tuple[int, int],
        side: int,
        *,
        norm: bool = True,
    ) -> None:
        """A convolution to a square of ``side``, with a batch normalization or with a bias."""
        source, target = channels
        weights = source * target * kernel[0] * kernel[1]
        rest = [(f"{name}.bias", target)]
        if norm:
            rest = [(f"{name}.norm.weight", target), (f"{name}.norm.bias", target)]
        self.layers.append(
            _Layer(((f"{name}.weight", weights), *rest), float(weights) * side * side)
        )

    def dense(self, name: str, source: int, target: int, rows: int = 1) -> None:
        """A fully connected layer with bias, applied to ``rows`` vectors of each sample."""
        self.layers.append(
            _Layer(
                ((f"{name}.weight", source * target), (f"{name}.bias", target)),
                float(source) * target * rows,
            )
        )

    def table(self, name: str, elements: int) -> None:
        """Parameters that cost next to nothing."""
        self.layers.append(_Layer(((name, elements),), 0.0))

    def work(self, multiplications: float) -> None:
        """Work without parameters."""
        self.layers.append(_Layer((), multiplications))

    def model(self, name: str, step_s: float) -> Model:
        """The backward pass of what was collected."""
        total = sum(layer.multiplications for layer in self.layers)
        done = 0.0
        gradients = []
        for layer in reversed(self.layers):
            done += layer.multiplications
            for parameter, elements in reversed(layer.parameters):
                gradients.append(Gradient(parameter, elements, min(done / total, 1.0)))
        forward_s = step_s * _FORWARD_SHARE
        return Model(name, BATCH, forward_s, step_s - forward_s, tuple(gradients))


def _vgg16() -> Model:
    network = _Network()
    channels = 3
    for block, (width, depth, side) in enumerate(
        [(64, 2, 224), (128, 2, 112), (256, 3, 56), (512, 3, 28), (512, 3, 14)]
    ):
        for index in range(depth):
            name = f"block{block + 1}.conv{index + 1}"
            network.conv(name, (channels, width), (3, 3), side, norm=False)
            channels = width
    network.dense("fc6", 512 * 7 * 7, 4096)
    network.dense("fc7", 4096, 4096)
    network.dense("fc8", 4096, 1000)
    return network.model("vgg16", BATCH / 154)


def _resnet101() -> Model:
    network = _Network()
    network.conv("conv1", (3, 64), (7, 7), 112)
    channels = 64
    for stage, (width, depth, side) in enumerate(
        [(64, 3, 56), (128, 4, 28), (256, 23, 14), (512, 3, 7)]
    ):
        for index in range(depth):
            name = f"stage{stage + 2}.block{index + 1}"
            # The stride is in the 3 x 3 convolution: the one before it still has the larger square.
            before = side * 2 if index == 0 and stage > 0 else side
            network.conv(f"{name}.conv1", (channels, width), (1, 1), before)
            network.conv(f"{name}.conv2", (width, width), (3, 3), side)
            network.conv(f"{name}.conv3", (width, 4 * width), (1, 1), side)
            if index == 0:
                network.conv(f"{name}.shortcut", (channels, 4 * width), (1, 1), side)
            channels = 4 * width
    network.dense("fc", channels, 1000)
    return network.model("resnet101", BATCH / 130)


# A branch of an Inception block: (output channels, kernel, side of the output) one after the other.
_Branch = list[tuple[int, tuple[int, int], int]]


def _inception_a(pool: int) -> list[_Branch]:
    return [
        [(64, (1, 1), 35)],
        [(48, (1, 1), 35), (64, (5, 5), 35)],
        [(64, (1, 1), 35), (96, (3, 3), 35), (96, (3, 3), 35)],
        [(pool, (1, 1), 35)],
    ]


def _inception_b() -> list[_Branch]:
    return [[(384, (3, 3), 17)], [(64, (1, 1), 35), (96, (3, 3), 35), (96, (3, 3), 17)]]


def _inception_c(width: int) -> list[_Branch]:
    across, down = (1, 7), (7, 1)
    return [
        [(192, (1, 1), 17)],
        [(width, (1, 1), 17), (width, across, 17), (192, down, 17)],
        [
            (width, (1, 1), 17),
            (width, down, 17),
            (width, across, 17),
            (width, down, 17),
            (192, across, 17),
        ],
        [(192, (1, 1), 17)],
    ]


def _inception_d() -> list[_Branch]:
    return [
        [(192, (1, 1), 17), (320, (3, 3), 8)],
        [(192, (1, 1), 17), (192, (1, 7), 17), (192, (7, 1), 17), (192, (3, 3), 8)],
    ]


def _add_fan(network: _Network, name: str, channels: int) -> None:
    """The last blocks: two branches split at their end, sharing the convolutions before."""
    network.conv(f"{name}.branch1.conv1", (channels, 320), (1, 1), 8)
    network.conv(f"{name}.branch2.conv1", (channels, 384), (1, 1), 8)
    network.conv(f"{name}.branch2.conv2a", (384, 384), (1, 3), 8)
    network.conv(f"{name}.branch2.conv2b", (384, 384), (3, 1), 8)
    network.conv(f"{name}.branch3.conv1", (channels, 448), (1, 1), 8)
    network.conv(f"{name}.branch3.conv2", (448, 384), (3, 3), 8)
    network.conv(f"{name}.branch3.conv3a", (384, 384), (1, 3), 8)
    network.conv(f"{name}.branch3.conv3b", (384, 384), (3, 1), 8)
    network.conv(f"{name}.branch4.conv1", (channels, 192), (1, 1), 8)


def _inception_v3() -> Model:
    network = _Network()
    channels = 3
    stem: _Branch = [
        (32, (3, 3), 149),
        (32, (3, 3), 147),
        (64, (3, 3), 147),
        (80, (1, 1), 73),
        (192, (3, 3), 71),
    ]
    for index, (width, kernel, side) in enumerate(stem):
        network.conv(f"stem.conv{index + 1}", (channels, width), kernel, side)
        channels = width
    blocks: list[tuple[list[_Branch], int]] = [  # and the channels of the block's output
        (_inception_a(32), 256),
        (_inception_a(64), 288),
        (_inception_a(64), 288),
        (_inception_b(), 768),
        (_inception_c(128), 768),
        (_inception_c(160), 768),
        (_inception_c(160), 768),
        (_inception_c(192), 768),
        (_inception_d(), 1280),
    ]
    for number, (branches, output) in enumerate(blocks):
        for place, branch in enumerate(branches):
            source = channels
            for index, (width, kernel, side) in enumerate(branch):
                name = f"mixed{number + 1}.branch{place + 1}.conv{index + 1}"
                network.conv(name, (source, width), kernel, side)
                source = width
        channels = output
    for number in (10, 11):
        _add_fan(network, f"mixed{number}", channels)
        channels = 2048
    network.dense("fc", channels, 1000)
    return network.model("inception_v3", BATCH / 142)


def _transformer() -> Model:
    width, inner, tokens = 768, 3072, _TOKENS_PER_SAMPLE
    network = _Network()
    for name, rows in [("tokens", 30522), ("positions", 512), ("segments", 2), ("norm", 2)]:
        network.table(f"embedding.{name}", rows * width)
    for number in range(1, 13):
        name = f"layer{number}"
        for part in ("query", "key", "value"):
            network.dense(f"{name}.{part}", width, width, tokens)
        network.work(2.0 * tokens * tokens * width)  # attention: scores, and what they weigh
        network.dense(f"{name}.output", width, width, tokens)
        network.table(f"{name}.norm1", 2 * width)
        network.dense(f"{name}.inner", width, inner, tokens)
        network.dense(f"{name}.outer", inner, width, tokens)
        network.table(f"{name}.norm2", 2 * width)
    network.dense("pooler", width, width)
    multiplications = sum(layer.multiplications for layer in network.layers)
    # A multiplication comes with an addition; backward takes twice as many as forward.
    step_s = BATCH * multiplications * 2 * 3 / _TRANSFORMER_FLOP_PER_S
    return network.model("transformer", step_s)


@cache
def models() -> dict[str, Model]:
    """All networks, by name."""
    every = [_vgg16(), _inception_v3(), _resnet101(), _transformer()]
    return {model.name: model for model in every}

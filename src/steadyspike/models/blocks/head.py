"""The classifier: pooling and fully connected layers, with one output per time step."""

from __future__ import annotations

from torch import Tensor, nn

from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.time import Folded


class Head(nn.Module):
    """The classifier ``fc(dropout( lif(fc1(dropout(pool(x)))) ))``, [T, B, C, H, W] -> [T, B, num_classes].

    pool: 0 none (flatten), -1 global average, k > 0 average over k x k, then flatten
    hidden: width of a first fully connected layer (scaled by ``parts.width``); None: there is only one layer
    spiking: put a neuron after the hidden layer. It has no norm before it, so the layer's weights must start large
        enough for it to fire (`models.weight_init.fire`; docs/models.md on layers that never fire).
    votes: number of outputs that are averaged for each class.
    bias: whether the last layer has a bias
    """

    GLOBAL = -1

    def __init__(
        self,
        parts: Parts,
        shape: Shape,
        num_classes: int,
        *,
        pool: int = GLOBAL,
        hidden: int | None = None,
        spiking: bool = False,
        dropout: float = 0.0,
        votes: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.pool, self.votes = pool, votes
        self.average = Folded(nn.AvgPool2d(pool)) if pool > 0 else nn.Identity()
        features = shape.channels if pool == self.GLOBAL else (shape.pooled(pool) if pool else shape).features
        self.features = features
        self.dropout = nn.Dropout(dropout)
        self.fc1: nn.Module = nn.Identity()
        self.lif: nn.Module = nn.Identity()
        if hidden is not None:
            width = parts.channels(hidden)
            self.fc1 = nn.Linear(features, width)
            self.lif = parts.make_flat_neuron(width) if spiking else nn.Identity()
            features = width
        self.fc = nn.Linear(features, num_classes * votes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean((-2, -1)) if self.pool == self.GLOBAL else self.average(x).flatten(2)
        if x.shape[-1] != self.features:
            raise ValueError(
                f"the classifier takes {self.features} features but got {x.shape[-1]}: the network was built for "
                "images of another size; create it with the image_size=(height, width) of your images"
            )
        if not isinstance(self.fc1, nn.Identity):
            x = self.lif(self.fc1(self.dropout(x)))
        y = self.fc(self.dropout(x))
        return y if self.votes == 1 else y.unflatten(-1, (-1, self.votes)).mean(-1)

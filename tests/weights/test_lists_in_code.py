"""What the reading of source code follows through lists that a forward pass fills."""

from torch import Tensor, nn

from fire_core.weights.matrices import matrices


class WithAuxiliaryLayer(nn.Module):
    """Two layers put their outputs into one list, and the first item alone is what the network is for."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.auxiliary = nn.Linear(8, 5)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).relu()
        outputs = [self.last(x)]
        outputs.insert(1, self.auxiliary(x))
        return outputs[0].softmax(-1)


def test_an_item_is_inserted_at_its_index() -> None:
    roles = {entry.name: entry.role for entry in matrices(WithAuxiliaryLayer())}
    assert roles == {"body.weight": "mlp", "auxiliary.weight": "mlp", "last.weight": "head"}

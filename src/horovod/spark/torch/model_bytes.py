"""Models and optimizers of PyTorch as bytes."""

from __future__ import annotations

import copy
import io
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ZIP = b"PK"  # how a file of TorchScript begins; a pickle does not


def model_bytes(model: torch.nn.Module) -> bytes:
    """A model with its parameters; TorchScript stays TorchScript."""
    if any(each.device.type != "cpu" for each in model.state_dict().values()):
        model = copy.deepcopy(model).cpu()
    if not isinstance(model, torch.jit.ScriptModule):
        return bytes(cloudpickle.dumps(model))
    buffer = io.BytesIO()
    torch.jit.save(model, buffer)
    return buffer.getvalue()


def model_of(data: bytes) -> Any:
    """The model of some bytes, on the CPU."""
    if data.startswith(_ZIP):
        return torch.jit.load(io.BytesIO(data), map_location="cpu")  # type: ignore[no-untyped-call]
    return cloudpickle.loads(data)


@dataclass(frozen=True)
class OptimizerRecord:
    """An optimizer apart from its parameters, which it knows by their names in the model.

    Attributes:
        kind: its class.
        defaults: options for new groups.
        groups: the options of each group, with names as ``params``.
        state: by name.
    """

    kind: type[torch.optim.Optimizer]
    defaults: Mapping[str, Any]
    groups: list[dict[str, Any]]
    state: Mapping[str, Any]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> OptimizerRecord:
        """Record an optimizer.

        Args:
            optimizer: whose parameters are those of the model, or of another one like it.
            model: gives them names.

        Raises:
            UsageError: it has other parameters.
        """
        names = {id(param): name for name, param in model.named_parameters()}
        held = [param for group in optimizer.param_groups for param in group["params"]]
        if not all(id(param) in names for param in held):
            in_order = list(model.named_parameters())
            if [param.shape for param in held] != [param.shape for _, param in in_order]:
                raise UsageError(
                    f"the optimizer has {len(held)} parameters, which are not those of the model: "
                    f"make it with model.parameters() ({len(in_order)})"
                )
            pairs = zip(held, in_order, strict=True)
            names = {id(param): name for param, (name, _) in pairs}
        groups = [
            {**group, "params": [names[id(param)] for param in group["params"]]}
            for group in optimizer.param_groups
        ]
        here = torch.device("cpu")
        state = {names[id(param)]: _copied(value, here) for param, value in optimizer.state.items()}
        plain = getattr(optimizer, "_wrapped", optimizer)
        return cls(type(plain), optimizer.defaults, groups, state)

    def described(self) -> dict[str, Any]:
        """Return its class and options, see :mod:`horovod.spark.common.description`."""
        return {"class": self.kind, "groups": self.groups}

    def bound_to(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """A new optimizer of this kind over the parameters of a model.

        Args:
            model: has parameters of these names.

        Raises:
            UsageError: it has not.
        """
        params = dict(model.named_parameters())
        missing = [name for group in self.groups for name in group["params"] if name not in params]
        if missing:
            raise UsageError(f"the optimizer has a parameter {missing[0]!r}, the model has not")
        groups = [
            {**group, "params": [params[name] for name in group["params"]]} for group in self.groups
        ]
        state: defaultdict[Any, Any] = defaultdict(dict)
        for name, value in self.state.items():
            state[params[name]] = _copied(value, params[name].device)
        # As when it is unpickled: its constructor may take anything.
        optimizer: torch.optim.Optimizer = object.__new__(self.kind)
        optimizer.__setstate__(
            {"defaults": dict(self.defaults), "state": state, "param_groups": groups}
        )
        return optimizer


def _copied(value: Any, device: torch.device) -> Any:
    """The state of a parameter, where the parameter is; counts of steps stay on the CPU."""
    if not isinstance(value, dict):
        return value
    return {
        name: each.detach().clone().to(device if each.dim() else each.device)
        if isinstance(each, torch.Tensor)
        else each
        for name, each in value.items()
    }

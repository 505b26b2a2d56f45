"""DistributedOptimizer, with ranks as threads."""

from __future__ import annotations

import copy
import pickle
import warnings
import weakref
from typing import Any

import pytest
import torch
from thread_ranks import ThreadRanks, run_ranks
from torch_training import (
    F64,
    RECIPES,
    Recipe,
    assert_close,
    assert_ranks_agree,
    backward,
    batch,
    check_equal,
    gradients,
    local_gradients,
    loss_of,
    make_model,
    mean_gradients,
    sgd,
    train_alone,
    train_distributed,
    wrap,
)

import horovod.torch as hvd
from horovod.errors import UsageError


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_training_is_that_of_one_process_with_all_data(name: str, size: int) -> None:
    recipe, tolerance = RECIPES[name]
    everyones = run_ranks(size, train_distributed, recipe)
    check_equal(everyones, train_alone(size, recipe), tolerance)


def test_one_rank_computes_the_bits_of_the_plain_optimizer() -> None:
    recipe = Recipe(dtype=torch.float32)
    (mine,) = run_ranks(1, train_distributed, recipe)
    assert all(map(torch.equal, mine, train_alone(1, recipe)))


def test_the_class_parameters_and_state_stay() -> None:
    def body(_: int) -> None:
        model = make_model(0, F64)
        plain = torch.optim.Adam(model.parameters(), lr=0.25)
        backward(model, 0)
        plain.step()
        moment = plain.state[model[0].weight]["exp_avg"]
        wrapped = hvd.DistributedOptimizer(plain, model.named_parameters())
        assert type(wrapped).__name__ == "Adam"
        assert isinstance(wrapped, torch.optim.Adam)
        assert wrapped.param_groups is plain.param_groups
        assert wrapped.state[model[0].weight]["exp_avg"] is moment
        assert wrapped.state_dict().keys() == plain.state_dict().keys()
        assert wrapped.backward_passes_per_step == 1
        assert wrapped.op == hvd.Average
        assert wrapped.gradient_predivide_factor == 1.0
        assert wrapped.sparse_as_dense is False
        assert wrapped.process_set is hvd.global_process_set
        assert wrapped._parameter_names[model[0].weight] == "0.weight"
        wrapped.param_groups[0]["lr"] = 0.5
        assert plain.param_groups[0]["lr"] == 0.5

    run_ranks(2, body)


def test_wrong_arguments_are_refused() -> None:
    model = make_model(0, F64)
    params = list(model.parameters())
    twice = [("a", param) for param in params]
    some = list(model.named_parameters())[1:]
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "op=Average"),
        ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor"),
        ({"named_parameters": params}, "pairs"),
        ({"named_parameters": ["ab"]}, "pairs"),
        ({"named_parameters": twice}, "stand twice"),
        ({"named_parameters": some}, "does not name 1"),
        ({"groups": 0}, "positive"),
        ({"groups": -1}, "positive"),
        ({"groups": [[1]]}, "not a tensor"),
        ({"groups": params}, "list of lists"),
        ({"groups": [params[:2], params[1:3]]}, "already"),
        ({"op": 99}, "op=99"),
    )

    def body(_: int) -> None:
        for options, message in cases:
            with pytest.raises(UsageError, match=message):
                hvd.DistributedOptimizer(sgd(model), **options)
        with pytest.raises(UsageError, match="already"):
            hvd.DistributedOptimizer(wrap(model))
        with pytest.raises(UsageError, match="process sets"):
            hvd.DistributedOptimizer(sgd(model), process_set=hvd.ProcessSet([0]))
        with pytest.warns(DeprecationWarning, match="num_groups") as caught:
            hvd.DistributedOptimizer(sgd(model), num_groups=2)
        assert caught[0].filename == __file__
        # Names of other tensors do no harm.
        others = [*model.named_parameters(), ("other", torch.ones(1))]
        hvd.DistributedOptimizer(sgd(model), named_parameters=others)

    run_ranks(1, body)


def test_names_come_from_the_place_without_named_parameters() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        plain = torch.optim.SGD(
            [{"params": model[0].parameters()}, {"params": model[3].parameters()}], lr=0.1
        )
        optimizer = hvd.DistributedOptimizer(plain)
        names = optimizer._parameter_names.values()
        assert list(names) == [f"allreduce.noname.{g}.{i}" for g in range(2) for i in range(2)]
        backward(model, rank)
        optimizer.step()
        assert_ranks_agree(model)

    run_ranks(2, body)


def test_gradients_leave_during_the_backward_pass() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            submitted: list[str] = []
            group = ranks.groups[rank]
            allreduce = group.allreduce

            def spy(*args: Any, **kwargs: Any) -> Any:
                submitted.append(kwargs["name"])
                return allreduce(*args, **kwargs)

            group.allreduce = spy  # type: ignore[method-assign]
            model = make_model(0, F64)
            optimizer = wrap(model)
            backward(model, rank)
            names = [name for name, _ in model.named_parameters()]
            assert sorted(submitted) == sorted([*names, "0.bias.used"])
            # The last layer is the first whose gradient is known.
            assert submitted[0].startswith("3.")
            optimizer.step()
            assert len(submitted) == 7

        ranks.run(body)


def test_parameters_without_gradient_on_some_ranks() -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = torch.nn.Linear(5, 2, dtype=F64)
            self.right = torch.nn.Linear(5, 2, dtype=F64)

    for groups in (None, 2):

        def body(rank: int, groups: int | None = groups) -> None:
            model = Branches()
            hvd.broadcast_parameters(model.state_dict(), 0)
            optimizer = wrap(model, groups=groups)
            for step in range(3):
                optimizer.zero_grad()
                branch = model.left if rank == 0 else model.right
                loss_of(branch, *batch(rank, step, F64)).backward()
                expected = hvd.allreduce(
                    torch.zeros(2, 5, dtype=F64) if rank else model.left.weight.grad,
                    op=hvd.Average,
                    name="expected",
                )
                optimizer.step()
                assert model.left.weight.grad is not None
                torch.testing.assert_close(model.left.weight.grad, expected)
            assert_ranks_agree(model)

        run_ranks(2, body)


def test_clipping_between_synchronize_and_step() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        before = [param.detach().clone() for param in model.parameters()]
        backward(model, rank)
        optimizer.synchronize()
        assert_close(gradients(model), mean_gradients(2))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        clipped = [gradient.clone() for gradient in gradients(model)]
        with optimizer.skip_synchronize():
            optimizer.step()
        assert_close(gradients(model), clipped)
        steps = [b - p.detach() for b, p in zip(before, model.parameters(), strict=True)]
        assert_close(steps, [0.1 * gradient for gradient in clipped])

    run_ranks(2, body)


def test_a_step_after_synchronize_warns_once_each_time() -> None:
    text = r"optimizer\.step\(\) called without optimizer\.skip_synchronize\(\)"

    def body(_: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        for step in range(2):
            optimizer.zero_grad()
            backward(model, 0, step)
            optimizer.synchronize()
            with pytest.warns(UserWarning, match=text) as caught:
                optimizer.step()
            assert len(caught) == 1
            assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.zero_grad()
            backward(model, 0)
            optimizer.step()
            optimizer.zero_grad()
            backward(model, 0)
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
            # synchronize() of a step that was never taken is forgotten by the next backward pass.
            optimizer.synchronize()
            optimizer.zero_grad()
            backward(model, 0)
            optimizer.step()

    run_ranks(1, body)


def test_one_backward_pass_too_many_is_refused() -> None:
    def body(rank: int) -> None:
        for passes in (1, 2):
            model = make_model(0, F64)
            optimizer = wrap(model, backward_passes_per_step=passes)
            for _ in range(passes):
                backward(model, rank)
            with pytest.raises(AssertionError, match="backward_passes_per_step"):
                backward(model, rank)
            optimizer.zero_grad()
            for _ in range(passes):
                backward(model, rank)
            optimizer.step()

    run_ranks(2, body)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_is_legal_at_any_time(set_to_none: bool) -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model, backward_passes_per_step=2)
        backward(model, rank)
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(2):
            backward(model, rank)
        # In flight.
        optimizer.zero_grad(set_to_none)
        left = gradients(model)
        assert not left if set_to_none else all((g == 0).all() for g in left)
        backward(model, rank)
        backward(model, rank)
        optimizer.synchronize()
        assert_close(gradients(model), [2 * gradient for gradient in mean_gradients(2)])

    run_ranks(2, body)


def test_the_model_may_drop_its_gradients_in_flight() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        before = copy.deepcopy(model.state_dict())
        backward(model, rank)
        model.zero_grad()
        optimizer.step()
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())

    run_ranks(2, body)


def test_the_number_of_passes_can_change() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        optimizer.set_backward_passes_per_step(2)
        assert optimizer.backward_passes_per_step == 2
        backward(model, rank)
        backward(model, rank)
        optimizer.synchronize()
        assert_close(gradients(model), [2 * gradient for gradient in mean_gradients(2)])
        with pytest.raises(UsageError):
            optimizer.set_backward_passes_per_step(0)

    run_ranks(2, body)


def test_synchronize_takes_a_rest_of_passes() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model, backward_passes_per_step=4)
        backward(model, rank)
        optimizer.synchronize()
        assert_close(gradients(model), mean_gradients(2))

    run_ranks(2, body)


def test_two_optimizers_in_flight_over_the_same_names() -> None:
    def body(rank: int) -> None:
        models = [make_model(0, F64), make_model(1, F64)]
        optimizers = [wrap(model) for model in models]
        for step in range(3):
            losses = [loss_of(model, *batch(rank, step, F64)) for model in models]
            # One backward pass through both: their gradients are in flight together.
            (losses[0] + losses[1]).backward()
            for optimizer in reversed(optimizers) if rank else optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for model in models:
            assert_ranks_agree(model)

    run_ranks(2, body)


def test_states_are_loaded_and_hooks_still_run_once() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        plain = torch.optim.Adam(model.parameters())
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        backward(model, rank)
        optimizer.step()
        state = copy.deepcopy(optimizer.state_dict())
        optimizer.zero_grad()
        backward(model, rank)
        # With gradients in flight.
        optimizer.load_state_dict(state)
        calls: list[str] = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        optimizer.zero_grad()
        backward(model, rank)
        optimizer.step()
        assert calls == ["pre", "post"]
        assert_ranks_agree(model)

    run_ranks(2, body)


def test_closures_are_reduced_before_the_step() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, *batch(rank, 0, F64))
            loss.backward()
            return loss

        for _ in range(3):
            loss = optimizer.step(closure)
            assert isinstance(loss, torch.Tensor)
        assert_ranks_agree(model)
        # And the gradients of a backward pass before a closure that only tells the loss.
        optimizer.zero_grad()
        backward(model, rank)
        assert optimizer.step(lambda: 3.5) == 3.5
        assert_ranks_agree(model)

    run_ranks(2, body)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize("buckets", [False, True])
def test_gradients_with_a_graph_are_reduced_to_first_order(buckets: bool) -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model, gradient_buckets=buckets)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, *batch(rank, 0, F64)).backward(create_graph=True)
            with_graph = gradients(model)
            norm = sum(gradient.square().sum() for gradient in with_graph)
            optimizer.synchronize()
            assert_close(gradients(model), mean_gradients(2))
            assert not any(gradient.requires_grad for gradient in gradients(model))
            # The graph is that of this rank's loss, and its values have not changed.
            assert_close([gradient.detach() for gradient in with_graph], local_gradients(rank))
            second = torch.autograd.grad(norm, [model[0].weight])
            assert bool(second[0].isfinite().all()), step

    run_ranks(2, body)


def test_disagreement_about_a_gradient_is_an_error_on_all_ranks() -> None:
    def body(rank: int) -> None:
        model = torch.nn.Linear(5, 2 + rank, dtype=F64)
        optimizer = wrap(model)
        model(torch.ones(1, 5, dtype=F64)).sum().backward()
        found = r"'bias' is float64 \(2,\) on rank 0, float64 \(3,\) on rank 1; 'weight' is"
        with pytest.raises(hvd.HorovodInternalError, match=found):
            optimizer.step()

    run_ranks(2, body)


def test_the_ranks_must_name_the_same_parameters_for_numbered_groups() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        names = [(f"{name}{rank * (name == '0.bias')}", p) for name, p in model.named_parameters()]
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 1: .*0\.bias0, 0\.bias1"):
            hvd.DistributedOptimizer(sgd(model), names, groups=2)

    run_ranks(2, body)


def test_groups_follow_the_order_of_rank_0() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        named = list(model.named_parameters())
        if rank:
            named.reverse()
        plain = torch.optim.SGD([param for _, param in named], lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, named, groups=2)
        for step in range(2):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
        assert_ranks_agree(model)

    run_ranks(2, body)


def test_nothing_keeps_model_and_optimizer_alive() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        backward(model, rank)
        optimizer.step()
        gone = (weakref.ref(model), weakref.ref(optimizer), weakref.ref(optimizer._reducer))
        del optimizer
        # The hooks went with the optimizer.
        model.zero_grad()
        backward(model, rank)
        assert_close(gradients(model), after_one_step(rank))
        del model
        assert all(reference() is None for reference in gone)

    def after_one_step(rank: int) -> list[torch.Tensor]:
        model = make_model(0, F64)
        for param, gradient in zip(model.parameters(), mean_gradients(2), strict=True):
            param.data.sub_(0.1 * gradient)
        backward(model, rank)
        return gradients(model)

    run_ranks(2, body)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_libraries_can_tell_a_wrapped_optimizer(op: int) -> None:
    def body(_: int) -> None:
        model = make_model(0, F64)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=op)
        assert "horovod" in str(type(optimizer))
        assert "horovod" in type(optimizer).__module__
        assert type(optimizer).__name__ == "SGD"
        assert isinstance(optimizer, torch.optim.SGD)
        assert "horovod" not in str(type(plain))
        for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            assert type(copied) is torch.optim.SGD

    run_ranks(1, body)

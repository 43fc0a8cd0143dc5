"""The pretended CUDA device: what it refuses, counts and rounds."""

import copy
import io

import pytest
import torch
from cases.pretended_device import counted, pretended_device
from torch import nn


@pytest.fixture(autouse=True)
def device():
    if torch.cuda.is_available():
        pytest.skip("there is a real CUDA device")
    with pretended_device() as device:
        yield device


def test_tensors_say_where_they_are(device):
    made = [
        torch.zeros(2, device="cuda"),
        torch.tensor([1, 2], device=device),
        torch.ones(3).to("cuda:0"),
        torch.ones(1).cuda(),
    ]
    for tensor in made:
        assert tensor.device == device
        assert tensor.is_cuda
        assert (tensor.is_cpu, tensor.is_meta) == (False, False)
        assert tensor.to(device) is tensor
        assert not tensor.cpu().is_cuda
        assert copy.deepcopy(tensor).is_cuda
        assert tensor.new_tensor([1.0]).is_cuda
        assert torch.zeros_like(tensor, device="cpu").is_cpu
    assert torch.zeros(2).is_cpu
    assert len({tensor.data_ptr() for tensor in made}) == 4  # weights are told apart by it
    head = nn.Linear(3, 2).cuda()
    assert {p.device for p in head.parameters()} == {device}
    assert all(isinstance(p, nn.Parameter) for p in copy.deepcopy(head).parameters())
    head(torch.ones(4, 3, device=device)).sum().backward()
    assert head.weight.grad.device == device
    assert torch.equal(head.weight.grad.cpu(), torch.full((2, 3), 4.0))
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    assert {t.device for t in torch.load(file, weights_only=True).values()} == {device}


@pytest.mark.parametrize(
    "mixed",
    [
        lambda here, there: here + there,
        lambda here, there: there @ here,
        lambda here, there: there.copy_(there * here),
        lambda here, there: torch.cat([here, there]),
        lambda here, there: here[there.long()],
        lambda here, there: here.index_copy(0, there.long(), here),
        lambda here, there: there.index_put_((there.long(),), here),
        lambda here, there: torch.where(there > 0, there, here),
        lambda here, there: torch.ops.torchssvm.viterbi(there.view(1, 1, 3), here.expand(3, 3), None),
    ],
)
def test_mixed_devices_are_refused(mixed, device):
    with pytest.raises(RuntimeError, match="same device"):
        mixed(torch.zeros(3), torch.zeros(3, device=device))


@pytest.mark.parametrize(
    ("waits", "what"),
    [
        (lambda x: float(x[0]), "_local_scalar_dense"),
        (lambda x: bool((x > 0).any()), "_local_scalar_dense"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "copy to the host"),
        (lambda x: x[x > 0], "index by a mask"),
        (lambda x: x[torch.tensor([0, 1])], "index by an index on the host"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x.unique(), "_unique2"),
        (lambda x: torch.equal(x, x), "equal"),
        (lambda x: x.repeat_interleave(x.long().abs()), "repeat_interleave"),
        (lambda x: torch.tensor([1.0], device=x.device), "copy to the device"),
        (lambda x: torch.zeros(3).to(x.device), "copy to the device"),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
    ],
)
def test_waits_of_the_host_are_counted(waits, what, device):
    x = torch.randn(3, device=device)
    with counted() as counts:
        waits(x)
    assert [place for place in counts.places if place[0].startswith("wait")] == [(f"wait {what}", "outside")]
    assert counts.syncs == 1


def test_launches_are_counted(device):
    x = torch.randn(3, 4, device=device)
    with counted() as counts:
        x.mT.reshape(-1)[1:].unsqueeze(0).detach()  # one copy, the rest are views
        torch.empty_like(x)
        (x * 2.0).sum()
        torch.zeros(3).to(device, non_blocking=True)
    assert (counts.launches, counts.syncs) == (4, 0)
    with counted() as counts:
        torch.zeros(3).add(1.0)  # on the host
    assert counts.launches == 0


def test_products_are_rounded_to_tf32_where_the_settings_say_so(device):
    x = torch.tensor([[1.0 + 2.0**-12]], device=device)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    results = []
    try:
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
            results.append((float(x @ x), float(nn.functional.conv1d(x.view(1, 1, 1), x.view(1, 1, 1)))))
            assert float(x.double() @ x.double()) == (1.0 + 2.0**-12) ** 2
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    assert results == [((1.0 + 2.0**-11),) * 2, (1.0, 1.0)]

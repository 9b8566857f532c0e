"""Steps that use PyTorch, two processes on each of two hosts.

Without postponed annotations: KFP's own decorator cannot read those.
"""

import kr_kfp

__all__ = ["broken", "join"]


@kr_kfp.component(hosts=2, processes_per_host=2, framework="torch", base_image="python:3.12", install_kfp_package=False)
def join(folder: str) -> dict:  # type: ignore[type-arg]
    """Join all processes from the plain environment, pass data in each way once, and train a line.

    Args:
        folder: Where every process leaves a file before the barrier.
    """
    import os
    from pathlib import Path

    import torch
    import torch.distributed as dist

    def train(model: torch.nn.Module, x: torch.Tensor) -> list[float]:
        """Descend towards y = 2x + 1; numbers are such that none is ever rounded."""
        descent = torch.optim.SGD(model.parameters(), lr=1 / 64)
        for _ in range(4):
            descent.zero_grad()
            torch.nn.functional.mse_loss(model(x), 2 * x + 1).backward()
            descent.step()
        return [value.item() for value in model.parameters()]

    ctx = kr_kfp.context()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "OMP_NUM_THREADS")
    place = [rank, world, ctx.host, ctx.process, ctx.processes, *(int(os.environ[name]) for name in names)]

    total = torch.tensor(10**rank)
    dist.all_reduce(total)
    word = torch.tensor([rank + 7, rank])
    dist.broadcast(word, src=0)
    Path(folder, str(rank)).touch()
    dist.barrier()
    there = sorted(path.name for path in Path(folder).iterdir())

    x = torch.arange(8, dtype=torch.float64).reshape(8, 1)
    line = torch.nn.Linear(1, 1, dtype=torch.float64)
    # Each begins elsewhere: DistributedDataParallel has to take process 0's.
    torch.nn.init.constant_(line.weight, rank)
    torch.nn.init.constant_(line.bias, rank)
    together = train(torch.nn.parallel.DistributedDataParallel(line), x[rank::world])
    torch.nn.init.zeros_(line.weight)
    torch.nn.init.zeros_(line.bias)
    alone = train(line, x)

    mine = {"place": place, "total": total.item(), "word": word.tolist(), "there": there}
    mine |= {"together": together, "alone": alone}
    seen = [None] * world
    dist.all_gather_object(seen, mine)
    dist.destroy_process_group()
    return {"keras": os.environ["KERAS_BACKEND"], "seen": seen}


@kr_kfp.component(hosts=2, processes_per_host=2, framework="auto", base_image="python:3.12", install_kfp_package=False)
def broken(how: str) -> int:
    """Join, add up ranks until host 1's second process is lost, which every other one waits for then.

    Args:
        how: ``raise``, or ``kill``: no word is left behind.
    """
    import os
    import signal

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for turn in range(5):
        if (turn, dist.get_rank()) == (3, 3):
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("bad batch")
        dist.all_reduce(torch.tensor(dist.get_rank()))
    return 0

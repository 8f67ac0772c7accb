"""Medians under CUDA graphs over rotating inputs, and the copy bandwidth they are held against."""

import statistics

import torch


def graph_time_us(calls, repeats=15):
    """Median microseconds of one call, all of ``calls`` (each on inputs of its own) being captured in one graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(2):
        graph.replay()
    return _median(graph.replay, repeats) / len(calls)


def eager_time_us(call, repeats=7):
    """Median microseconds of ``call`` launched from the host."""
    call()
    return _median(call, repeats)


def _median(run, repeats):
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def copy_bandwidth():
    """Bytes per second of a device-to-device copy, read plus written."""
    source = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (eager_time_us(lambda: target.copy_(source)) * 1e-6)


def peak_bytes(call):
    """Bytes that ``call`` allocates at its peak beyond what was allocated before it."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before

"""Measure the INT2 kernels on this machine's GPU; write every row to DATE.json and a summary to CARD.json.

    PYTHONPATH=src python benchmarks/kernels.py [--peer FILE] [--stock FILE] [--out FOLDER] [--commit SHA]

``--peer`` is the OSCAR authors' decode_attention.py, ``--stock`` the one of an sglang release (a bf16 cache): each is
loaded from that one file. Everything of one table is measured in this one process.
"""

import argparse
import datetime
import json
import math
import subprocess
from pathlib import Path

import decode
import peers
import prefill
import store
import timing
import torch
import triton

LARGE = 32768


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def summary(rows, prefills, stores):
    """The figures that the targets are about; a peer that was not given leaves its figures out."""
    name = "{model} {batch}x{length}".format_map
    result = {
        "decode.bandwidth_share": {name(r): round(r["bandwidth_share"], 3) for r in rows},
        "decode.max_rel_error": max(r["rel_error"] for r in rows),
    }
    if "authors_us" in rows[0]:
        ratios = [r["authors_us"] / r["ours_us"] for r in rows]
        result |= {"decode.geomean_vs_authors": geometric_mean(ratios), "decode.min_vs_authors": min(ratios)}
    if "bf16_us" in rows[0]:
        ratios = [r["bf16_us"] / r["ours_us"] for r in rows]
        large = [ratio for r, ratio in zip(rows, ratios, strict=True) if r["length"] >= LARGE]
        result |= {"decode.geomean_vs_bf16": geometric_mean(ratios), "decode.min_vs_bf16_large": min(large)}
    mib = [r["ours_transient"] / 2**20 for r in prefills]
    result |= {
        "prefill.transient_mib": max(mib),
        "prefill.transient_mib_by_shape": {
            f"{r['model']} {r['prefix']}": round(m, 1) for r, m in zip(prefills, mib, strict=True)
        },
        "prefill.dense_transient_ratio": max(r["dense_transient"] / r["combined_bytes"] for r in prefills),
        "prefill.time_ratio": max(
            r["ours_us"] / r["dense_us"] for r in prefills if r["prefix"] == max(prefill.PREFIXES)
        ),
        "store.launches": max(r["launches"] for r in stores if r["tokens"] <= 16),
    }
    return result


def show(rows):
    for r in rows:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in r.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--stock", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="revision measured, where git cannot tell")
    options = parser.parse_args()
    peer = peers.load(options.peer, "authors_decode") if options.peer else None
    stock = peers.load(options.stock, "stock_decode") if options.stock else None
    bandwidth = timing.copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    rows = []
    for shape in decode.SHAPES:
        rows.append(decode.row(*shape, bandwidth, peer, stock))
        show(rows[-1:])
    prefills, stores = prefill.rows(), store.rows()
    show(prefills + stores)
    result = summary(rows, prefills, stores)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    commit = (
        options.commit
        or subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    )
    full = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__, "date": today,
        "commit": commit, "copy_bandwidth": bandwidth, "summary": result,
        "decode": rows, "prefill": prefills, "store": stores,
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{today}.json").write_text(json.dumps(full, indent=1) + "\n")
    card = torch.cuda.get_device_name().lower().removeprefix("nvidia ").replace(" ", "-")
    (options.out / f"{card}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

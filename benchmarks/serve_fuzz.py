"""Send a server what no client should, and see that it answers each with a documented status and one line.

    python benchmarks/serve_fuzz.py MODEL [MODEL ...] [--schema 5000] [--bodies 10000] [--minutes 8]

First schemathesis draws requests from the OpenAPI document, sound ones and others, for every endpoint; then odd bodies
(benchmarks/odd_bodies.py) go to every endpoint that takes one, with sound requests between them whose answers must stay
the same. All of it goes to loopback, and ends by count or by time.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from odd_bodies import PATHS, OddBodies, OddRequest
from serving_client import Client, Reply, RunningServer, folder_names, reason_of

from hashee.cost.machine import describe_machine

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "unsupported_method", "allow_header_conformance", "negative_data_rejection"),
)
LONGEST_REASON = 600
OPERATIONS = 14
"""About how many the OpenAPI document has: requests are shared among them."""


@dataclass
class Fuzzed:
    """What became of the odd bodies."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    by_oddity: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def fail(self, odd: OddRequest, why: str) -> None:
        """Note an answer that is none."""
        self.failures.append(f"{odd.oddity} to {odd.path}: {why}; body {odd.body[:200]!r}, headers {odd.headers!r}")


def main() -> None:
    """Fuzz a server and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--schema", type=int, default=5000, help="requests drawn from the OpenAPI document, at least")
    parser.add_argument("--bodies", type=int, default=10_000, help="odd bodies")
    parser.add_argument("--minutes", type=float, default=8, help="each part ends by then")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file for the outcome as JSON")
    options = parser.parse_args()
    with RunningServer(*options.models, "--threads", 1) as server:
        before = memory(server)
        report: dict[str, Any] = {"schema": fuzz_schema(server.url, options.schema, options.minutes * 60, options.seed)}
        odd = OddBodies(folder_names(options.models), seed=options.seed)
        fuzzed = asyncio.run(fuzz_bodies(server.url, odd, options.bodies, options.minutes * 60))
        report["bodies"] = summary(fuzzed)
        report["memory_mb"] = {"before": before, "after": memory(server)}
        report["server"] = {
            "lives": server.process.poll() is None,
            "said": server.lines[len(options.models) + 1 :][:20],
        }
    print(json.dumps(report, indent=1, ensure_ascii=False))
    if options.output is not None:
        options.output.write_text(json.dumps(report | {"machine": describe_machine(1)}, indent=1) + "\n")
    if fuzzed.failures or report["schema"]["failures"] or report["schema"]["errors"] or not report["server"]["lives"]:
        sys.exit(1)


def memory(server: RunningServer) -> int:
    """Return the resident memory of the server's own process in MB."""
    return int(psutil.Process(server.process.pid).memory_info().rss / 1e6)


def fuzz_schema(url: str, requests: int, seconds: float, seed: int, headers: Sequence[str] = ()) -> dict[str, Any]:
    """Let schemathesis draw requests from the OpenAPI document, and return how many, and what it found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--phases", "coverage,fuzzing"),
            *("--max-examples", str(max(1, requests // OPERATIONS)), "--max-time", str(max(1, int(seconds)))),
            *("--checks", ",".join(CHECKS), "--seed", str(seed), "--no-shrink", "--continue-on-failure"),
            *("--report-json-path", str(path), "--warnings", "off"),
        ]
        for header in headers:
            command += ["--header", header]
        run = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, cwd=folder, check=False)
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if found is None:
        sys.exit(f"schemathesis wrote no report: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return {
        "requests": found["test_cases"]["generated"],
        "operations": found["operations"]["tested"],
        "seconds": round(found["running_time"], 1),
        "failures": [f"{each['title']}: {', '.join(each['operations'])}" for each in found["failures"]],
        "errors": [str(each) for each in found["errors"]],
        "said": run.stdout[-3000:] if found["failures"] or found["errors"] else "",
    }


async def fuzz_bodies(url: str, odd: OddBodies, requests: int, seconds: float, headers: Sequence[str] = ()) -> Fuzzed:
    """Send odd bodies one after the other on a few connections, and check every answer."""
    client, fuzzed = Client(url), Fuzzed()
    documented = await documented_statuses(client, headers)
    sound = {path: await sound_answer(client, odd, path, headers) for path in PATHS}
    end = time.monotonic() + seconds

    async def send_some() -> None:
        while fuzzed.requests < requests and time.monotonic() < end:
            fuzzed.requests += 1
            request = odd.draw()
            check = fuzzed.requests % 50 == 0
            await send_odd(client, request, documented[request.path], fuzzed, headers)
            if check and await sound_answer(client, odd, request.path, headers) != sound[request.path]:
                fuzzed.fail(request, "after it a sound request has another answer")

    await asyncio.gather(*(send_some() for _ in range(4)))
    client.close()
    return fuzzed


async def documented_statuses(client: Client, headers: Sequence[str]) -> Mapping[str, set[int]]:
    """Return the statuses that the OpenAPI document names for POST on every path."""
    reply = await client.send("GET", "/openapi.json", headers=headers)
    paths = json.loads(reply.body)["paths"]
    return {
        path: {int(status) for status in found["post"]["responses"]} for path, found in paths.items() if "post" in found
    }


async def sound_answer(client: Client, odd: OddBodies, path: str, headers: Sequence[str]) -> Any:
    """Return what a sound request gets; a full queue is waited for."""
    body = json.dumps(odd.sound(path)).encode()
    for _ in range(20):
        reply = await client.send("POST", path, body, ("Content-Type: application/json", *headers))
        if reply.status != 429:
            break
        await asyncio.sleep(0.5)
    # Batches of other sizes add up in another order; five digits are the same in all of them.
    return reply.status, json.loads(reply.body, parse_float=lambda digits: f"{float(digits):.4f}")


async def send_odd(
    client: Client, odd: OddRequest, documented: set[int], fuzzed: Fuzzed, headers: Sequence[str]
) -> None:
    """Send one odd request and check what comes back."""
    start = time.perf_counter()
    try:
        async with asyncio.timeout(60):
            reply = await client.send_raw(with_headers(odd, headers))
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
        fuzzed.fail(odd, f"no answer ({type(error).__name__})")
        return
    fuzzed.seconds.append(time.perf_counter() - start)
    fuzzed.statuses[reply.status] += 1
    fuzzed.by_oddity[odd.oddity][reply.status] += 1
    if why := objection(reply, documented):
        fuzzed.fail(odd, why)


def with_headers(odd: OddRequest, headers: Sequence[str]) -> bytes:
    """Return a request as it is sent, with more headers."""
    return OddRequest(odd.oddity, odd.path, odd.body, (*odd.headers, *headers), odd.chunked).to_bytes()


def objection(reply: Reply, documented: set[int]) -> str | None:
    """Return what is wrong with an answer, if anything is."""
    if reply.status >= 500 or reply.status not in documented:
        return f"status {reply.status}: {reply.body[:300]!r}"
    try:
        value = json.loads(reply.body)
    except ValueError:
        return f"status {reply.status} with a body that is no JSON: {reply.body[:300]!r}"
    if reply.status == 200:
        return None
    reason = reason_of(value)
    if not reason or "\n" in reason or len(reason) > LONGEST_REASON:
        return f"status {reply.status} without one line of reason: {reply.body[:300]!r}"
    if reply.status == 429 and int(reply.headers.get("retry-after", "0")) < 1:
        return "429 without Retry-After"
    return None


def summary(fuzzed: Fuzzed) -> dict[str, Any]:
    """Return the numbers to report."""
    return {
        "requests": fuzzed.requests,
        "statuses": dict(sorted(fuzzed.statuses.items())),
        "by_oddity": {name: dict(sorted(found.items())) for name, found in sorted(fuzzed.by_oddity.items())},
        "longest_seconds": round(max(fuzzed.seconds, default=0.0), 3),
        "failures": fuzzed.failures[:20],
    }


if __name__ == "__main__":
    main()

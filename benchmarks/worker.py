"""A process for one contender: takes requests as JSON lines, answers with JSON lines. Started by run.py.

Requests: {"prepare": case}, {"time": metric, "budget": seconds}, {"peak": 1}, {"shares": metric}, {"drop": 1}.
"""

from __future__ import annotations

import json
import resource
import sys
import traceback
from typing import Any

import torch
from benchmarks import shares, tasks
from benchmarks.cases import NetworkCase, NeuronCase

from steadyspike.core.heap import keep_freed_memory

KINDS = {"NeuronCase": NeuronCase, "NetworkCase": NetworkCase}


def main() -> None:
    contender, threads, limit = sys.argv[1], int(sys.argv[2]), int(float(sys.argv[3]) * 2**30)
    if sys.argv[4] == "kept":
        assert keep_freed_memory(), "this C library cannot keep freed memory"
    torch.set_num_threads(threads)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    answers, sys.stdout = sys.stdout, sys.stderr
    runs: tasks.Runs = {}
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        try:
            answer: Any = None
            if "prepare" in request:
                kind, fields = request["prepare"]
                runs = tasks.prepare(KINDS[kind](**fields), contender)
                for name in runs:  # not the functions: a name for one would keep its tensors when they are dropped
                    runs[name]()
            elif "time" in request:
                answer = tasks.seconds(runs[request["time"]], request["budget"])
            elif "peak" in request:
                answer = tasks.peak(runs)
            elif "shares" in request:
                answer = shares.shares(runs[request["shares"]])
            else:
                runs = {}
                tasks.give_back()
        except Exception as error:
            runs = {}
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

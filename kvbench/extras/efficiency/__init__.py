"""Time and memory of prefill, eviction and decoding: the task, how it is timed, its report and its plot."""

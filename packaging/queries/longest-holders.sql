-- SPDX-License-Identifier: GPL-2.0-or-later
-- Preempted lock holders in the recordings of `holdfast record` in this directory and those below
-- it, the VM that loses most first.
SELECT
    host,
    vm,
    vm_pid,
    count(*) AS holders_preempted,
    count(*) FILTER (end_ns - begin_ns > 1000000) AS longer_than_1_ms,
    quantile_cont((end_ns - begin_ns) / 1e6, 0.99) AS p99_ms,
    sum(end_ns - begin_ns) / 1e9 AS blocked_s
FROM '**/*.parquet'
WHERE event = 'preempted' AND class = 'holder'
GROUP BY host, vm, vm_pid, vm_begin_ns
ORDER BY blocked_s DESC;

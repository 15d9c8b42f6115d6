"""Many runs as lines of one file, for the array jobs of any scheduler.

    jaxleak sweep --sweep runs.jsonl --index 3      # run line 3, counted from 0
    jaxleak sweep merge --sweep runs.jsonl          # what all lines found, as one table

A line of the file is one run: a command of `jaxleak` and its options, as its command line would have them,

    {"study": "demo", "options": {"data": "digits", "num-samples": 100, "batch-size": 10, "seed": 0}}
    {"study": "invert", "options": {"attack": "fedleak", "seeds": [0, 1], "exact-kinks": true}}

and goes to `runs/sweep/<file>/<line>`. Whatever starts these commands knows the number: `$SLURM_ARRAY_TASK_ID`,
`$JOB_COMPLETION_INDEX`, or a loop in the shell. A run that was stopped goes on when its line is started again. `merge`
writes `merged.json` and `merged.csv` beside the runs and ends with 1 while lines are missing or wrong. A line that is
wrong holds up no other. Lines may be appended to a file that has been started; a changed line is refused where its
number has run before.
"""

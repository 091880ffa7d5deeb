"""``regard embed`` on the machines of a Ray cluster, as a Ray Data pipeline.

    command        supervisor.py   starts the driver, counts what is done, joins the shards of each output
      driver       driver.py       builds the pipeline and runs it, in a process of its own
        readers    worker.py       file -> chunks of at most 512 lines          (tasks)
        embedders  worker.py       chunk -> shard of vectors on the shared disk (a pool of actors, one model each)

The shards and their records are the same as in ``regard.text.embedding_job``, so a run can be resumed with Ray or
without.
"""

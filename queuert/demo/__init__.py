"""The main job, end to end: ``queuert dev demo``.

A Spark driver (``driver``) starts one chain for each source file of the standard library; workers run the handlers of
``jobs``; ``show`` is the stage manager that starts them all, kills one worker half way, and asks ``proof`` for the
truth at the end. ``job_types`` is what driver and workers share.
"""

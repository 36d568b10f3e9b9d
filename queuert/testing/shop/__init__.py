"""A web shop whose jobs succeed, fail, wait and limp: what ``queuert dev dashboard`` shows.

``job_types`` declares the jobs, ``handlers`` does them, and ``story`` starts chains: those that a new dashboard shows,
and more as long as it runs.
"""

"""Help for testing: of programs that use queuert, and of adapters that implement its contracts.

The modules are imported one by one, since each needs other packages: `databases` makes a database a test from one
template, `fault_proxy` breaks connections on purpose.
"""

"""The differential test: random pipelines on the engine, and on a reference that shares no code with it.

    case        what is run: a pipeline and its steps, as plain values
    behaviour   what computations do, written once for the engine and for the reference
    drawing     a case from a seed; its steps
    reference   the semantics of the contract, one record after the other; its keys
    engine      the same case on the driver, the workers and a store; an executor that loses tasks
    comparison  what must be equal after each step
    shrinking   the smallest part of a case that still fails

A failing seed prints a command: ``python -m tests.differential SEED --without ...``.
"""

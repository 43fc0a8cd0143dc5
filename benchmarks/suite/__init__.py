"""What ``benchmarks/run.py`` measures: one module for each part.

A part has a ``TITLE`` and three functions: ``collect(ask, settings)`` measures and returns results,
``summarise(results)`` makes tables and limits, ``draw(results, folder)`` draws. Its ``MEASURES`` are the
functions that ``ask`` runs, each call in a fresh process.
"""

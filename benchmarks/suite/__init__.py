"""What ``benchmarks/run.py`` measures: one module for each part.

A part has a ``TITLE`` and three functions: ``collect(ask, settings)`` has everything measured and returns what was
found, ``summarise(found)`` makes tables and limits of it, ``draw(found, folder)`` draws. Its ``MEASURES`` are the
functions that ``ask`` runs, each call in a fresh process.
"""

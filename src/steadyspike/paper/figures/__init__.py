"""Figures of the paper: functions from arrays to a matplotlib Figure.

Nothing is shown, and pyplot's state is not changed.
"""

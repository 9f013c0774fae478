"""What the cells of a table say when they say yes, no, or nothing.

`serving/predict_numpy.py`, which is copied beside exported models and must stand alone, has its own copy: a test
compares the two.
"""

NO = {"0", "no", "n", "false", "f"}
YES = {"1", "yes", "y", "true", "t"}
GAPS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")

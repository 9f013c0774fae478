"""What the cells of a table say when they say yes, no, or nothing.

`serving/predict_numpy.py`, which is copied beside exported models and must stand alone, has its own copy: a test
compares the two.
"""

NO = {"0", "no", "n", "false", "f"}
YES = {"1", "yes", "y", "true", "t"}
GAPS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
ANSWERS = (("no", "yes"), ("0", "1"), ("false", "true"), ("n", "y"), ("f", "t"))
"""No and yes, as one file writes both."""
PAIRS = (
    ("female", "male"),
    ("f", "m"),
    ("low", "high"),
    ("negative", "positive"),
    ("neg", "pos"),
    ("absent", "present"),
    ("control", "case"),
    ("healthy", "sick"),
    ("healthy", "ill"),
    ("alive", "dead"),
    ("survived", "died"),
    ("normal", "abnormal"),
    ("benign", "malignant"),
    ("off", "on"),
)
"""Words that codebooks give the numbers 0 and 1: what a draft proposes where one file has words and another codes."""

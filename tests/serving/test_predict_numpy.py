"""The program beside exported models reads the cells of a table as training did."""

from kinfolk.data.tables import words
from kinfolk.serving import predict_numpy


def test_the_copy_of_words_for_yes_no_and_nothing_is_the_same() -> None:
    assert predict_numpy.NO == words.NO
    assert predict_numpy.YES == words.YES
    assert predict_numpy.GAPS == words.GAPS

"""JARs from Maven Central: what is said where they can't be fetched."""

import maven_jars


def test_reason_of_a_failed_fetch_is_one_line_about_the_network() -> None:
    output = ":: problems summary ::\n\tServer access error at url X (UnknownHostException: X)\nat java\n"
    assert maven_jars.failure_reason(output) == "Server access error at url X (UnknownHostException: X)"


def test_reason_of_a_silent_failure_says_so() -> None:
    assert maven_jars.failure_reason("\n") == "Spark said nothing"

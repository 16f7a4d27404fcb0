"""Which new workers are compatible with a job."""

from horovod import __version__
from horovod.common.contract.membership import Facts, encode
from horovod.runner.elastic.admission import AdmissionResult, Newcomers

JOB = Facts("1.2.0", "3.11", "train.py", "aa")


def judged(same_code: bool = True, **other: str) -> AdmissionResult:
    """Return the result for a worker that differs in this from the job's first worker."""
    newcomers = Newcomers(same_code, JOB.version)
    assert newcomers.judge(encode(JOB)) == AdmissionResult()
    facts = {"version": JOB.version, "python": JOB.python, "program": JOB.program, "code": JOB.code, **other}
    return newcomers.judge(encode(Facts(**facts)))


def test_the_variable_that_says_whether_the_program_must_be_the_same():
    for environ, refused in (({}, True), ({"HOROVOD_ELASTIC_CODE": "any"}, False)):
        newcomers = Newcomers.wanted(environ)
        first, other = (Facts(__version__, "3.11", "train.py", code) for code in ("aa", "bb"))
        assert newcomers.judge(encode(first)) == AdmissionResult()
        assert bool(newcomers.judge(encode(other)).refusal) is refused


def test_another_version_is_refused_by_naming_both():
    assert "has horovod 1.1.0, but the launcher has horovod 1.2.0" in judged(version="1.1.0").refusal
    assert "has Python 3.12, but the job's workers have Python 3.11" in judged(python="3.12").refusal


def test_another_program_is_a_refusal_or_a_warning_as_one_likes():
    text = "its copy of train.py differs from the one that the job runs"
    way_out = "; install the same on all hosts, or let it in by HOROVOD_ELASTIC_CODE=any"
    assert judged(code="bb") == AdmissionResult(text + way_out)
    assert judged(False, code="bb") == AdmissionResult(warning=f"{text}, which HOROVOD_ELASTIC_CODE=any allows")
    assert "its program is other.py, but the job's is train.py" in judged(program="other.py", code="bb").refusal
    assert "is no file" in judged(program="", code="").refusal

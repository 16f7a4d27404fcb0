"""Build settings of the wheels."""

import pytest

from tools.wheels import build


def test_folders_of_other_users_are_left_alone(tmp_path):
    (tmp_path / "horovod-1.0.tar.gz").write_text("")
    build.empty(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(build.BuildFailed, match=r"has 'thesis\.tex' in it"):
        build.empty(tmp_path)
    assert (tmp_path / "thesis.tex").exists()

"""Settings of pip, from files and variables, are passed to uv."""

from tools.packages.settings import parse, unknown, uv_environment

LISTING = """\
:env:.find-links='/opt/wheels'
:env:.disable-pip-version-check='1'
global.cert='/etc/ca.pem'
global.find-links='/elsewhere'
global.extra-index-url='file:///a\\nfile:///b'
install.no-index='false'
global.no-index='true'
wheel.only-binary=':all:'
"""


def test_variables_win_over_files_and_commands_over_global():
    assert parse(LISTING) == {
        "find-links": "/opt/wheels",
        "disable-pip-version-check": "1",
        "cert": "/etc/ca.pem",
        "extra-index-url": "file:///a file:///b",
    }


def test_uv_gets_all_settings():
    settings = {
        "index-url": "https://mirror/simple",
        "extra-index-url": "file:///a file:///b",
        "find-links": "/w /x",
        "constraint": "/c.txt",
        "cert": "/ca.pem",
        "no-index": "true",
        "proxy": "http://proxy:1",
        "timeout": "180",
        "trusted-host": "one two",
        "progress-bar": "off",
    }
    assert not unknown(settings)
    found = uv_environment(settings, [], {"PATH": "/bin", "SSL_CERT_FILE": "/other.pem"})
    assert found == {
        "PATH": "/bin",
        "UV_INDEX_URL": "https://mirror/simple",
        "UV_INDEX": "file:///a file:///b",
        "UV_FIND_LINKS": "/w,/x",
        "UV_CONSTRAINT": "/c.txt",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_NO_INDEX": "1",
        "HTTPS_PROXY": "http://proxy:1",
        "UV_HTTP_TIMEOUT": "180",
        "UV_INSECURE_HOST": "one two",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_SYSTEM_CERTS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }


def test_a_setting_without_a_counterpart_is_named():
    assert unknown({"only-binary": ":all:", "quiet": "1", "cert": "/ca.pem"}) == ["only-binary"]

"""Client for a Kubernetes API server.

The `kubernetes` package finds the credentials. API objects are plain dicts.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from horovod.runner.base.job_result import LaunchError

SECONDS = 30.0
"""Time limit in seconds for an answer."""
WATCH_SECONDS = 60
"""Seconds after which the server ends a watch, which is then started again."""
LOG_SECONDS = 300.0
"""Seconds to wait for the next line of a log; after that, the connection may be broken."""
PATHS = {
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Event": "/api/v1/namespaces/{namespace}/events",
}
_VERBS = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "GET": "get"}


class ApiError(RuntimeError):
    """Error response of the API server.

    Attributes:
        status: HTTP status.
        reason: Kubernetes' name for the error, such as AlreadyExists.
    """

    def __init__(self, text: str, status: int = 0, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class Unreachable(ApiError):
    """Error raised if the API server does not answer a request."""


def refusal(status: int, body: bytes, verb: str, resource: str, namespace: str) -> ApiError:
    """Return an exception that describes an error response of the API server."""
    try:
        answer = json.loads(body)
        message, reason = str(answer.get("message", "")), str(answer.get("reason", ""))
    except (ValueError, AttributeError):
        message, reason = body.decode(errors="replace").strip()[:500], ""
    what = f"{verb} {resource} in namespace {namespace}"
    if status == 401:
        text = f"the cluster does not know these credentials ({message or 'Unauthorized'}); the kubeconfig has others?"
    elif status == 403 and "quota" in message:
        text = f"a quota of namespace {namespace} does not allow to {verb} {resource}: {message}"
    elif status == 403:
        text = (
            f"you are not allowed to {what}: {message}. What horovodrun needs is in deploy/kubernetes/role.yaml; "
            f"`kubectl auth can-i {verb} {resource} -n {namespace}` asks for it"
        )
    else:
        text = f"cannot {what}: {message or f'HTTP status {status}'}"
    return ApiError(text, status, reason)


def _object(text: bytes, trouble: str) -> Any:
    """Parse a JSON object. Raises Unreachable if the text is not JSON, for example because a proxy truncated it."""
    try:
        return json.loads(text)
    except ValueError:
        raise Unreachable(f"the API server cannot be understood: {trouble} ({text[:80]!r})") from None


class Api:
    """Client for one cluster and one namespace. It is thread-safe."""

    def __init__(self, kubeconfig: str = "", context: str = "", namespace: str = "") -> None:
        """Find the credentials of the cluster.

        Args:
            kubeconfig: Path of the kubeconfig file. By default, the client searches for it as kubectl does. In a pod,
                it uses the pod's cluster.
            context: Context of the kubeconfig file. The default is its current context.
            namespace: Namespace of the objects. The default is the namespace of the context.

        Raises:
            LaunchError: If the `kubernetes` package or the credentials are missing.
        """
        try:
            config, client = importlib.import_module("kubernetes.config"), importlib.import_module("kubernetes.client")
        except ImportError:
            raise LaunchError(
                "the package kubernetes is not installed, with which horovodrun finds the cluster; "
                "`pip install 'horovod[kubernetes]'` brings it (--dry-run does without)"
            ) from None
        self._configuration, default = _credentials(config, client, kubeconfig, context)
        self.namespace = namespace or default
        self._pool = client.ApiClient(self._configuration).rest_client.pool_manager
        # The user has disabled verification in the kubeconfig. Do not warn, because kubectl does not warn either.
        if not self._configuration.verify_ssl:
            urllib3 = importlib.import_module("urllib3")
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def create(self, manifest: Mapping[str, Any], dry: bool = False) -> dict[str, Any]:
        """Create an object and return it. If `dry` is True, the server only checks it.

        Raises:
            ApiError: If the server rejects the request.
        """
        query = {"dryRun": "All", "fieldValidation": "Strict"} if dry else {}
        answer: dict[str, Any] = self._json("POST", manifest["kind"], query=query, body=manifest)
        return answer

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object. Raises ApiError with status 404 if the object does not exist."""
        answer: dict[str, Any] = self._json("GET", kind, name)
        return answer

    def list(self, kind: str, **query: str) -> dict[str, Any]:
        """Return all objects of the given kind that match the query.

        The result has the keys `items` and `metadata`. A watch can continue from `metadata.resourceVersion`.

        Raises:
            ApiError: If the server rejects the request.
        """
        answer: dict[str, Any] = self._json("GET", kind, query=query, verb="list")
        return answer

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> None:
        """Apply a merge patch to an object. Raises ApiError if the server rejects the request."""
        self._json("PATCH", kind, name, body=change)

    def delete(self, kind: str, name: str) -> bool:
        """Delete an object. The cluster then also deletes the objects that this object owns.

        Returns:
            False if the object did not exist.

        Raises:
            ApiError: If the server rejects the request.
        """
        try:
            self._json("DELETE", kind, name, query={"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def watch(self, kind: str, version: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield change events since `version`, until the server ends the connection.

        Each event is a dict with the keys `type` and `object`.

        Raises:
            ApiError: If the server rejects the request.
        """
        query = {**query, "watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        for line in self._lines(kind, "", query, "watch", WATCH_SECONDS + SECONDS):
            yield _object(line, "a watch has ended within an event")

    def log(self, pod: str, container: str, since: str = "") -> Iterator[bytes]:
        """Yield the container's log lines, until the container or the connection ends. Each line begins with its time.

        Args:
            pod: Name of the pod.
            container: Name of the container.
            since: Time of the first line (RFC 3339). By default, all lines are read.

        Raises:
            Unreachable: If no line has arrived for LOG_SECONDS.
            ApiError: If the server rejects the request.
        """
        query = {"follow": "true", "timestamps": "true", "container": container}
        if since:
            query["sinceTime"] = since
        return self._lines("Pod", f"{pod}/log", query, "get", LOG_SECONDS)

    def _url(self, kind: str, name: str, query: Mapping[str, str]) -> str:
        path = PATHS[kind].format(namespace=self.namespace) + (f"/{name}" if name else "")
        return f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")

    def _headers(self, content: str) -> dict[str, str]:
        found = {"Accept": "application/json, */*"}
        if content:
            found["Content-Type"] = content
        for each in self._configuration.auth_settings().values():  # `auth_settings` renews expired credentials.
            if each and each["in"] == "header" and each["value"]:
                found[each["key"]] = each["value"]
        return found

    def _send(
        self, method: str, url: str, seconds: float, body: Mapping[str, Any] | None = None, stream: bool = False
    ) -> Any:
        urllib3 = importlib.import_module("urllib3")
        content = {"POST": "application/json", "PATCH": "application/merge-patch+json"}.get(method, "")
        try:
            return self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=self._headers(content),
                timeout=urllib3.Timeout(connect=SECONDS, read=seconds),
                retries=False,
                preload_content=not stream,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: BaseException) -> Unreachable:
        return Unreachable(f"the API server {self._configuration.host} cannot be reached: {error}")

    def _json(
        self,
        method: str,
        kind: str,
        name: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        verb: str = "",
    ) -> Any:
        answer = self._send(method, self._url(kind, name, query or {}), SECONDS, body)
        if answer.status >= 300:
            raise self._refusal(answer.status, answer.data, verb or _VERBS[method], kind, name)
        return _object(answer.data, "it does not answer in JSON")

    def _lines(self, kind: str, name: str, query: Mapping[str, str], verb: str, seconds: float) -> Iterator[bytes]:
        urllib3 = importlib.import_module("urllib3")
        response = self._send("GET", self._url(kind, name, query), seconds, stream=True)
        try:
            if response.status >= 300:
                raise self._refusal(response.status, response.read(), verb, kind, name)
            rest = b""
            for piece in response.stream(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
            if rest:
                yield rest
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from None
        finally:
            with contextlib.suppress(Exception):
                response.close()  # Close the connection, because it cannot be reused while it contains unread data.
                response.release_conn()

    def _refusal(self, status: int, body: bytes, verb: str, kind: str, name: str) -> ApiError:
        resource = PATHS[kind].rpartition("/")[2] + ("/log" if name.endswith("/log") else "")
        return refusal(status, body, verb, resource, self.namespace)


def _credentials(config: Any, client: Any, kubeconfig: str, context: str) -> tuple[Any, str]:
    """Return (configuration, namespace) for API access. Raises LaunchError if no credentials are found."""
    found = client.Configuration()
    try:
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig or None)
        named = {each["name"]: each for each in contexts}
        if context and context not in named:
            raise LaunchError(f"--context must be one of {', '.join(named)}, got {context}")
        chosen = named[context] if context else current
        config.load_kube_config(
            config_file=kubeconfig or None, context=context or None, client_configuration=found, persist_config=False
        )
        return found, str(chosen.get("context", {}).get("namespace") or "default")
    except config.ConfigException as error:
        if kubeconfig or context:
            raise LaunchError(f"the kubeconfig {kubeconfig or ''} cannot be used: {error}") from None
        trouble = str(error)
    except OSError as error:
        raise LaunchError(f"the kubeconfig {kubeconfig} cannot be read: {error}") from None
    try:
        config.load_incluster_config(client_configuration=found)
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
            return found, file.read().strip()
    except (config.ConfigException, OSError):
        raise LaunchError(
            f"there is no cluster to ask: {trouble}; --kubeconfig FILE or KUBECONFIG names one, and --dry-run does "
            "without"
        ) from None

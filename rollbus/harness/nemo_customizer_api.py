"""The routes of the NeMo microservices that a DPO job needs, over HTTP; files go through the data store's Hub API.

POST {datastore}/v1/datastore/namespaces    POST {entity}/v1/namespaces    POST {entity}/v1/datasets
POST {entity}/v1/customization/jobs         GET  {entity}/v1/customization/jobs/{id}/status
POST {entity}/v1/deployment/model-deployments
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import httpx

from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError

EXISTS = (409, 422)
"""What the stores answer where a name is there already."""
TIMEOUT_S = 30.0


class NeMoServices:
    """A client of both hosts; close it."""

    def __init__(self, entity_host: str, datastore_host: str, token: str = "") -> None:
        self._entity, self._datastore, self._token = entity_host, datastore_host, token
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def is_healthy(self) -> bool:
        """Ask the customizer for its jobs; anything but an error of the server or no answer is well."""
        try:
            answer = await self._http.get(f"{self._entity}/v1/customization/jobs", params={"page_size": 1})
        except httpx.HTTPError:
            return False
        return answer.status_code < 400

    async def ensure_namespace(self, namespace: str) -> None:
        """Create a namespace in both stores, unless it is there."""
        await self._post(f"{self._entity}/v1/namespaces", {"id": namespace}, may_exist=True)
        answer = await self._send("POST", f"{self._datastore}/v1/datastore/namespaces", data={"namespace": namespace})
        _check(answer, may_exist=True)

    async def upload(self, namespace: str, name: str, files: Mapping[str, str], message: str) -> None:
        """Replace a data set's files, and register it."""
        repo = f"{namespace}/{name}"
        await asyncio.to_thread(self._upload, repo, files, message)
        body = {"name": name, "namespace": namespace, "files_url": f"hf://datasets/{repo}", "description": message}
        await self._post(f"{self._entity}/v1/datasets", body, may_exist=True)

    async def create_job(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a customization job."""
        return await self._post(f"{self._entity}/v1/customization/jobs", body)

    async def job_status(self, job_id: str) -> dict[str, Any]:
        """Return the state of a job."""
        answer = await self._send("GET", f"{self._entity}/v1/customization/jobs/{job_id}/status")
        return _check(answer)

    async def deploy(self, body: Mapping[str, Any]) -> None:
        """Serve a model; one that is served already stays."""
        await self._post(f"{self._entity}/v1/deployment/model-deployments", body, may_exist=True)

    async def deployment_state(self, namespace: str, name: str) -> tuple[str, str]:
        """Return the state of a deployment, in a word and in a sentence."""
        answer = await self._send("GET", f"{self._entity}/v1/deployment/model-deployments/{namespace}/{name}")
        found = _check(answer).get("status_details") or {}
        return str(found.get("status", "")).lower(), str(found.get("description", ""))

    async def _post(self, url: str, body: Mapping[str, Any], *, may_exist: bool = False) -> dict[str, Any]:
        return _check(await self._send("POST", url, json=dict(body)), may_exist=may_exist)

    async def _send(self, method: str, url: str, **options: Any) -> httpx.Response:
        try:
            return await self._http.request(method, url, **options)
        except httpx.HTTPError as error:
            raise UnavailableError(f"{method} {url}: {error!r}; see `entity_host` and `datastore_host`") from error

    def _upload(self, repo: str, files: Mapping[str, str], message: str) -> None:
        try:
            from huggingface_hub import CommitOperationAdd, HfApi
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "the NeMo data store is written through huggingface_hub; run: pip install huggingface_hub"
            ) from error
        api = HfApi(endpoint=f"{self._datastore}/v1/hf", token=self._token or False)
        api.create_repo(repo, repo_type="dataset", exist_ok=True)
        operations = [CommitOperationAdd(path, text.encode()) for path, text in files.items()]
        api.create_commit(repo, operations, commit_message=message, repo_type="dataset", revision="main")


def _check(answer: httpx.Response, *, may_exist: bool = False) -> dict[str, Any]:
    if answer.status_code >= 500:
        raise UnavailableError(f"{answer.request.url} answered {answer.status_code}: {answer.text[:200]}")
    if answer.status_code >= 400 and not (may_exist and answer.status_code in EXISTS):
        raise RejectedError(f"{answer.request.url} answered {answer.status_code}: {answer.text[:200]}")
    found = answer.json() if answer.content else {}
    return found if isinstance(found, dict) else {}

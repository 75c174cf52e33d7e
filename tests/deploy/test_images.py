"""Every image is named by its digest: in compose, the Dockerfile and the manifests; and on the page the same ones."""

import re

import pytest
import yaml

from tests.compose import BASE, ROOT, SASL, read_compose

IMAGE_WITH_DIGEST = r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}"
KUBERNETES = ROOT / "deploy" / "kubernetes"


def images_of_compose(*files: str) -> set[str]:
    """Return the images that are fetched; the others are built from the Dockerfile."""
    services = read_compose(*files)["services"].values()
    assert all("image" in service or "build" in service for service in services)
    return {service["image"] for service in services if "image" in service}


def images_of_dockerfile() -> set[str]:
    """Return what its stages begin with, other than an earlier stage."""
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    return {image for image, _ in stages} - {name for _, name in stages}


def test_the_first_process_of_an_image_passes_signals_on() -> None:
    """The kernel gives process 1 no signal that it has no handler for: SIGTERM during a start would be lost."""
    text = (ROOT / "Dockerfile").read_text()
    last_stage = text.rpartition("\nFROM ")[2]
    assert 'ENTRYPOINT ["tini", "--", "rollbus"]' in last_stage
    assert re.search(r"apt-get install .* tini\b", last_stage)


@pytest.mark.parametrize("files", [(BASE,), (BASE, SASL)], ids=["plain", "sasl"])
def test_every_image_that_is_fetched_is_named_by_its_digest(files: tuple[str, ...]) -> None:
    images = images_of_compose(*files) | images_of_dockerfile()
    assert len(images) == 3
    assert [image for image in images if not re.fullmatch(IMAGE_WITH_DIGEST, image)] == []


def test_the_page_names_the_digests_that_are_fetched() -> None:
    page = (ROOT / "docs" / "security-parts.md").read_text()
    rows = re.findall(r"^\| `(\S+:\S+)` \| `(sha256:\w+)` \| `(\S+)` \|$", page, flags=re.MULTILINE)
    files = {"docker-compose.yml": images_of_compose(BASE), "Dockerfile": images_of_dockerfile()}
    assert {file: {f"{image}@{digest}" for image, digest, named in rows if named == file} for file in files} == files


def test_the_example_asks_a_digest_for_each_image_of_the_manifests() -> None:
    manifests = [path.read_text() for path in KUBERNETES.rglob("*.yaml") if path.parent.name != "example"]
    named = set(re.findall(r"\b(?:image|value): (rollbus[\w-]*)", "\n".join(manifests)))
    listed_images = yaml.safe_load((KUBERNETES / "example" / "kustomization.yaml").read_text())["images"]
    assert named == {image["name"] for image in listed_images}
    assert all(
        re.fullmatch(r"sha256:[0-9a-f]{64}", image["digest"]) and "newTag" not in image for image in listed_images
    )

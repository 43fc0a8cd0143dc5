"""What the host of the project reads: workflows, forms, and the versions and files that they name."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def read(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def load(path: Path | str) -> dict:
    # PyYAML takes the key "on" for True.
    return {"on" if key is True else key: value for key, value in yaml.safe_load(read(path)).items()}


def jobs() -> dict[str, dict]:
    """All jobs but those that are a whole workflow."""
    return {name: job for path in WORKFLOWS for name, job in load(path)["jobs"].items() if "steps" in job}


def scripts() -> list[tuple[str, str]]:
    return [
        (f"{name}: {step['name']}", step["run"])
        for name, job in jobs().items()
        for step in job["steps"]
        if "run" in step
    ]


def project() -> dict:
    return tomllib.loads(read("pyproject.toml"))["project"]


def claimed() -> list[str]:
    return [c.rsplit(" ", 1)[1] for c in project()["classifiers"] if re.fullmatch(r".*Python :: 3\.\d+", c)]


@pytest.mark.parametrize(("where", "script"), scripts())
def test_a_script_can_be_parsed_and_its_files_exist(where, script):
    plain = re.sub(r"\$\{\{.*?\}\}", "x", script)
    subprocess.run(["bash", "-n"], input=plain, text=True, check=True)
    assert plain == script, "values of a workflow reach a script by env, never as text"
    for name in re.findall(r"(?:\.ci|tests|docs|examples)/[\w./-]+|[\w-]+\.(?:txt|md|toml)\b", script):
        made = re.search(rf"(?:-o|>) {re.escape(name)}", " ".join(each for _, each in scripts()))
        assert (ROOT / name).exists() or made or name == "notes/notes.md", name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_permissions_are_few(path):
    workflow, text = load(path), read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    uses = re.findall(r"uses: ([^.].*)", text)
    assert uses
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each) for each in uses), uses
    for name, job in workflow["jobs"].items():
        if "uses" in job:  # another workflow of this folder, which is tested here too
            continue
        assert job["timeout-minutes"] > 0
        assert job.get("permissions", {}) == {"publish": {"id-token": "write"}, "announce": {"contents": "write"}}.get(
            name, {}
        )


def test_an_action_has_one_version():
    pins = {each for path in WORKFLOWS for each in re.findall(r"uses: ([^.].*)", read(path))}
    assert len(pins) == len({each.split("@")[0] for each in pins})


def test_only_a_tag_publishes_and_only_from_its_environment():
    assert load(".github/workflows/release.yml")["on"] == {"push": {"tags": ["v*"]}}
    publishing = {
        name for name, job in jobs().items() if any("pypi-publish" in s.get("uses", "") for s in job["steps"])
    }
    assert publishing == {"publish"}
    assert jobs()["publish"]["environment"] == "pypi"
    assert jobs()["publish"]["needs"] == ["tests", "build"]
    assert load(".github/workflows/release.yml")["jobs"]["tests"] == {"uses": "./.github/workflows/tests.yml"}
    assert not any("cache" in step.get("with", {}) for step in jobs()["build"]["steps"])  # others could fill it


def test_the_lines_of_lint_are_the_hooks():
    (local,) = load(".pre-commit-config.yaml")["repos"]  # no hook brings a version: those of constraints.txt are used
    assert local["repo"] == "local"
    assert all(hook["language"] == "system" for hook in local["hooks"])
    hooks = [hook["entry"].replace(" --force-exclude", "") for hook in local["hooks"] if "stages" not in hook]
    install, *lines = [step["run"] for step in jobs()["lint"]["steps"] if "run" in step]
    assert "-c constraints.txt" in install
    assert [line.removesuffix(" .") for line in lines] == hooks
    ci = read(".ci/run")
    assert "pip install -q -c constraints.txt" in ci
    assert all(tool in ci for tool in ("\nruff check .\n", "\nruff format --check .\n", "\nmypy\n", "pytest"))


def test_pythons_are_those_that_the_classifiers_claim():
    oldest, *_, newest = claimed()
    assert project()["requires-python"] == f">={oldest}"
    assert "Operating System :: POSIX :: Linux" in project()["classifiers"]
    assert jobs()["pythons"]["strategy"]["matrix"]["python"] == claimed()
    matrix = jobs()["quick"]["strategy"]["matrix"]
    assert matrix["python"] == [oldest, newest]
    assert [(row["python"], row["resolution"]) for row in matrix["include"]] == [
        (oldest, "lowest-direct"),
        (newest, "highest"),
    ]
    pattern = re.search(r"sed -n '(s/.*p)' pyproject.toml", read(".ci/pythons")).group(1)
    shown = subprocess.run(["sed", "-n", pattern, ROOT / "pyproject.toml"], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == claimed()
    assert f"Python {oldest} to {newest}" in read("docs/install.md")


def test_the_extras_of_the_quick_suite_exist():
    (script,) = [script for where, script in scripts() if where == "quick: choose versions"]
    named = re.findall(r"--extra ([\w-]+)", script)
    assert "test" in named
    assert set(named) <= project()["optional-dependencies"].keys()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_what_is_installed(path):
    form = load(path)
    assert form["name"]
    assert form["description"]
    fields = {field["id"]: field for field in form["body"] if field["type"] != "markdown"}
    assert "`torchssvm info`" in fields["info"]["attributes"]["label"]
    assert all(field["attributes"]["label"] for field in fields.values())
    assert any(field.get("validations", {}).get("required") for field in fields.values())


def test_there_are_two_forms_and_a_text_for_changes():
    assert [path.stem for path in FORMS] == ["bug", "question"]
    assert len(read(".github/pull_request_template.md").splitlines()) < 15


def test_the_citation():
    citation = load("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license", "references"} <= citation.keys()
    assert citation["version"] == project()["version"]
    assert citation["license"] == project()["license"]
    assert [paper["year"] for paper in citation["references"]] == [2013, 2016, 2016]
    assert all(paper["type"] and paper["title"] and paper["authors"] for paper in citation["references"])


def test_the_security_page_names_this_version():
    minor = project()["version"].rpartition(".")[0]
    assert f"| {minor} | yes |" in read("SECURITY.md")


def test_no_address_of_the_project_is_named():
    """There is none yet. Where there is one, this test goes, and ``[project.urls]`` comes."""
    address = re.compile(r"(github\.(com|io)|pypi\.org|readthedocs|conda)[\w./-]*torchssvm", re.IGNORECASE)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone")
    texts = (".md", ".yml", ".yaml", ".cff", ".toml", ".py", ".txt")
    files = [name for name in listed.stdout.splitlines() if name.endswith(texts)]
    assert len(files) > 100
    assert not [name for name in files if (ROOT / name).is_file() and address.search(read(name))]

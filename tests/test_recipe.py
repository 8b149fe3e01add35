"""Recipes: read, checked, and those that ship."""

from pathlib import Path

import pytest

from partly import methods
from partly.config import Config
from partly.errors import ConfigError
from partly.hiding import Setting
from partly.readers import FORMATS, options_of
from partly.recipe import Recipe

SHIPPED = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))


def test_the_four_data_sets_of_the_paper_have_one():
    assert [path.stem for path in SHIPPED] == ["coco", "cub", "nuswide", "openimages"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_can_be_run(path):
    recipe = Recipe.read(path)
    format = recipe.data["format"]
    assert format in FORMATS
    assert set(recipe.data.get("options", {})) <= set(options_of(format))
    assert not list(Config(**recipe.training).problems())
    assert [methods.get(name).name for name in recipe.study["methods"]] == recipe.study["methods"]
    assert [str(Setting.parse(text)) for text in recipe.study["settings"]]


def test_everything_wrong_is_said_at_once(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text(
        '[training]\nepochs = 0\nresize = "squash"\n'
        '[data]\nverify = "maybe"\n[study]\nseed = 1\n[extra]\nx = 1\n'
    )
    with pytest.raises(ConfigError) as caught:
        Recipe.read(path)
    text = str(caught.value)
    for said in ("epochs must be", "resize is one of", "verify is one of", "no seed", "'extra'"):
        assert said in text
    assert all(problem.startswith(str(path)) for problem in caught.value.problems)


@pytest.mark.parametrize("content", ["epochs =", "\xff", None])
def test_a_recipe_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "broken.toml"
    if content is not None:
        path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match="cannot read the recipe"):
        Recipe.read(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[training]\naugment = 5", "augment must be text, not 5"),
        ("[training]\nbackbone = 5", "backbone must be text, not 5"),
        ('[training]\nhead_only = "no"', "head_only must be true or false, not 'no'"),
        ('[training]\noptions = "x"', "options must be names and values"),
        ('[data]\noptions = "x"', "options are names and values"),
        ('[study]\nmethods = "partly"', "methods is a list of texts"),
        ('[study]\nseeds = "3"', "seeds is a whole number"),
    ],
)
def test_values_of_the_wrong_kind(tmp_path, content, sentence):
    (tmp_path / "kinds.toml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        Recipe.read(tmp_path / "kinds.toml")
    (problem,) = caught.value.problems
    assert sentence in problem

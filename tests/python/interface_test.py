# SPDX-License-Identifier: Apache-2.0
"""Every public name has a docstring, and every function hints of all its types. Usage: interface_test.py PACKAGE_ROOT"""

import ast
import dataclasses
import inspect
import pathlib
import re
import sys
import typing
import unittest

sys.path.insert(0, sys.argv[1])

import starpipe  # noqa: E402


def public_members(owner):
    for name, member in vars(owner).items():
        if not name.startswith("_") or name == "__init__":
            yield name, member


class Interface(unittest.TestCase):
    def test_the_module_has_no_other_public_names(self):
        names = {name for name, value in vars(starpipe).items() if not name.startswith("_") and not inspect.ismodule(value)}
        self.assertEqual(names, set(starpipe.__all__))

    def test_docstrings_and_hints(self):
        for name in starpipe.__all__:
            value = getattr(starpipe, name)
            if typing.get_origin(value) in (typing.Literal, typing.Union):
                continue  # Python has no docstrings of them; _jobs.py and others say what the words mean
            self.documented(name, value)
            if inspect.isclass(value):
                for member_name, member in public_members(value):
                    self.member(value, f"{name}.{member_name}", member)
            else:
                self.hinted(name, value)

    def member(self, owner, name, member):
        if dataclasses.is_dataclass(owner) or issubclass(owner, tuple):
            if not inspect.isfunction(member) and not isinstance(member, property) or name.endswith("__init__"):
                return  # a field, or what dataclasses and named tuples add
        if isinstance(member, (property, classmethod, staticmethod)) or callable(member):
            if name.endswith(("CheckError.__init__", "Timeline.__init__")):
                return
            self.documented(name, member)
            if inspect.isfunction(member):
                self.hinted(name, member)

    def documented(self, name, value):
        words = inspect.getdoc(value) or ""
        self.assertGreater(len(words), 10, f"{name} has no docstring")
        self.assertNotIn("(*args", words, f"{name} has only a generated docstring")

    def hinted(self, name, function):
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name != "self":
                self.assertIsNot(parameter.annotation, inspect.Parameter.empty, f"{name}: {parameter.name}")
        self.assertIn("return", function.__annotations__, name)

    def test_the_stub_has_the_modules_parameters(self):
        """stubtest cannot see them; pybind11 writes them into the first line of each docstring."""
        stub = ast.parse((pathlib.Path(starpipe.__file__).parent / "_core.pyi").read_text())
        functions = [node for node in stub.body if isinstance(node, ast.FunctionDef)]
        self.assertGreater(len(functions), 20)
        for node in functions:
            words = getattr(starpipe._core, node.name).__doc__.splitlines()[0]
            self.assertEqual([argument.arg for argument in node.args.args], re.findall(r"(\w+): ", words), node.name)

    def test_units_are_said(self):
        for value, words in ((starpipe.Costs, "unit"), (starpipe.StageSizes, "bytes"), (starpipe.Timeline, "unit of the costs"),
                             (starpipe.search, "seconds"), (starpipe.partition, "bytes")):  # fmt: skip
            self.assertIn(words, inspect.getdoc(value))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

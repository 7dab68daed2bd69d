"""JUnit XML, as continuous integration servers read it.

The dialect is the common part of what Jenkins, GitLab and GitHub's reporters take: testsuites > testsuite > testcase >
failure, error or skipped, with the counts on every suite.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
OUTCOMES = {"failures": "failure", "errors": "error", "skipped": "skipped"}
"""Counts on a suite, and the elements that they count."""


@dataclass(frozen=True)
class Outcome:
    """Why a case did not pass: ``tag`` is "failure", "error" or "skipped"."""

    tag: str
    message: str
    type: str = ""
    text: str = ""


@dataclass(frozen=True)
class Case:
    """One test case; it passed if it has no outcomes."""

    classname: str
    name: str
    outcomes: Sequence[Outcome] = ()
    output: str = ""


def junit_xml(name: str, suites: Mapping[str, Sequence[Case]]) -> str:
    """Return the XML text of suites by name."""
    root = ET.Element("testsuites", name=name)
    for title, cases in suites.items():
        suite = ET.SubElement(root, "testsuite", name=_xml_text(title))
        for case in cases:
            element = ET.SubElement(suite, "testcase", classname=_xml_text(case.classname), name=_xml_text(case.name))
            for outcome in case.outcomes:
                child = ET.SubElement(element, outcome.tag, message=_xml_text(outcome.message))
                if outcome.type:
                    child.set("type", outcome.type)
                child.text = _xml_text(outcome.text) or None
            if case.output:
                ET.SubElement(element, "system-out").text = _xml_text(case.output)
        _count(suite, suite.findall("testcase"))
    _count(root, root.findall("testsuite/testcase"))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _count(element: ET.Element, cases: Sequence[ET.Element]) -> None:
    element.set("tests", str(len(cases)))
    for count, tag in OUTCOMES.items():
        element.set(count, str(sum(case.find(tag) is not None for case in cases)))


def _xml_text(text: str) -> str:
    """Text without the characters that XML 1.0 cannot hold."""
    return _NOT_XML.sub("?", text)

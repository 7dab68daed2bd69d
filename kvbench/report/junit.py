"""A gate as JUnit XML, as continuous integration servers read it: a suite a check, a test case a cell.

The dialect is the common part of what Jenkins, GitLab and GitHub's reporters take: testsuites > testsuite > testcase >
failure, with the counts on every suite.
"""

import re
import xml.etree.ElementTree as ET

from kvbench.report.compare.gate import CHECKS, Finding, Gate

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(gate: Gate) -> str:
    """The XML text."""
    root = ET.Element("testsuites", name="kvbench gate", tests="0", failures=str(len(gate.findings)))
    total = 0
    for name in CHECKS:
        found = [finding for finding in gate.findings if finding.check == name]
        wheres = [*gate.cells, *(["all cells"] if name == "regression" and gate.pooled else [])]
        suite = ET.SubElement(root, "testsuite", name=name)
        for where in wheres:
            mine = [finding for finding in found if finding.where == where]
            classname = f"kvbench.gate.{name.replace(' ', '_')}"
            case = ET.SubElement(suite, "testcase", classname=classname, name=xml_text(where))
            for finding in mine:
                _failure(case, finding)
            if not mine and where in gate.cells and where not in gate.checked[name]:
                ET.SubElement(case, "skipped", message="nothing to check")
        failures, skipped = (sum(case.find(tag) is not None for case in suite) for tag in ("failure", "skipped"))
        for key, count in (("tests", len(wheres)), ("failures", failures), ("errors", 0), ("skipped", skipped)):
            suite.set(key, str(count))
        total += len(wheres)
    root.set("tests", str(total))
    root.set("failures", str(sum(int(suite.get("failures", "0")) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _failure(case: ET.Element, finding: Finding) -> None:
    failure = ET.SubElement(case, "failure", type=finding.check, message=xml_text(finding.text))
    listed = f"\nsamples: {' '.join(map(str, finding.samples))}" if finding.samples else ""
    failure.text = xml_text(f"{finding}{listed}")


def xml_text(text: str) -> str:
    """Text without the characters that XML 1.0 cannot hold."""
    return _NOT_XML.sub("?", text)

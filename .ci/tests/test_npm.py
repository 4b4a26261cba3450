"""No package of npm runs a script of its own when it is installed."""

import json
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SKIPPED = {"node_modules", "target", ".git"}


def folders():
    """The folders with a package.json of ours."""
    found = ROOT.glob("**/package.json")
    return sorted(file.parent for file in found if not SKIPPED & set(file.relative_to(ROOT).parts))


class InstallScripts(unittest.TestCase):
    def test_the_folders_are_found(self):
        self.assertGreaterEqual(len(folders()), 4)

    def test_every_folder_switches_install_scripts_off(self):
        for folder in folders():
            with self.subTest(folder=str(folder.relative_to(ROOT))):
                npmrc = folder / ".npmrc"
                lines = npmrc.read_text().splitlines() if npmrc.exists() else []
                self.assertIn("ignore-scripts=true", lines)

    def test_no_package_of_ours_has_an_install_script(self):
        for folder in folders():
            scripts = json.loads((folder / "package.json").read_text()).get("scripts", {})
            with self.subTest(folder=str(folder.relative_to(ROOT))):
                self.assertFalse({"preinstall", "install", "postinstall", "prepare"} & set(scripts))

    def test_every_command_that_installs_switches_them_off(self):
        install = re.compile(r"\bnpm'?,? \[?'?(ci|i|install|update)\b(.*)")
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        found = 0
        for name in filter(None, listed.stdout.decode().split("\0")):
            if name.endswith((".md", ".lock", "-lock.json")) or name.startswith(".ci/tests/"):
                continue
            for line in (ROOT / name).read_text(errors="replace").splitlines():
                if install.search(line) and not line.lstrip().startswith(("#", "//", "/*", "*")):
                    found += 1
                    self.assertIn("--ignore-scripts", line, name)
        self.assertGreaterEqual(found, 2)


if __name__ == "__main__":
    unittest.main()

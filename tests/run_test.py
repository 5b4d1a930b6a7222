#!/usr/bin/env python3
"""Tests tests/run: a copy of it, beside a table of the test's own, in a folder of its own.

Parts say with files in $OUT how far they are. Their processes are known by the name of the folder in their environment.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

RUN = pathlib.Path(__file__).resolve().parent / "run"
# Then parts have processes and mounts of their own.
OWN = os.geteuid() == 0 and subprocess.run(
    ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, timeout=120).returncode == 0
# Lasts until it is ended; and leaves a process behind that ignores signals and has left the session.
HOLD = 'touch "$OUT/up"; sleep 600'
STRAY = """setsid sh -c 'trap "" TERM INT HUP; touch "$OUT/stray"; while :; do sleep 1; done' &
until [ -e "$OUT/stray" ]; do sleep 0.1; done
"""


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="busbar-run-")).resolve()
        self.addCleanup(shutil.rmtree, self.folder)
        self.addCleanup(self.kill_all)
        self.root, self.cache, self.out = (self.folder / name for name in ("tree", "cache", "out"))
        for folder in (self.root / "tests", self.root / "in", self.out, self.folder / "bin"):
            folder.mkdir(parents=True)
        self.runner = pathlib.Path(shutil.copy(RUN, self.root / "tests/run"))
        (self.root / ".gitignore").write_text("/target/\n")
        (self.root / "in/file").write_text("one")
        # Nothing is installed, and no version depends on the machine.
        for name, prints in (("cargo", ""), ("apt-get", ""), ("rustc", "rustc 1"), ("dpkg-query", "ii  package 1")):
            self.program(name, prints)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self.env |= {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "BUSBAR_CACHE": str(self.cache),
                     "OUT": str(self.out), "GIT_CEILING_DIRECTORIES": str(self.folder)}
        subprocess.run(["git", "init", "-q", self.root], env=self.env, check=True, timeout=120)

    def program(self, name, prints):
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\necho '{prints}'\n")
        path.chmod(0o755)

    def table(self, steps=None, **parts):
        """Writes the table; a part that is a string is its command."""
        lines = ["[files]", 'all = ["."]', "[steps]", "[parts]"]
        for kind, tables in (("steps", steps or {}), ("parts", parts)):
            for name, fields in tables.items():
                fields = fields if isinstance(fields, dict) else {"run": fields}
                lines += [f"[{kind}.{name}]", f'what = "what {name} shows"']
                lines += [f"{field} = {json.dumps(value)}" for field, value in fields.items()]
        (self.root / "tests/parts.toml").write_text("\n".join(lines))

    def run_parts(self, *arguments, code=0, before=()):
        done = subprocess.run([*before, self.runner, *arguments], env=self.env, cwd=self.root, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertNotIn("Traceback", done.stdout)
        return done.stdout

    def start(self, *arguments):
        """Starts the runner, and waits until its part has made $OUT/up."""
        with open(self.folder / "output", "w") as output:
            process = subprocess.Popen([self.runner, *arguments], env=self.env, stdout=output, stderr=subprocess.STDOUT)
        self.until(lambda: (self.out / "up").exists() or process.poll() is not None)
        self.assertIsNone(process.poll(), (self.folder / "output").read_text())
        return process

    def until(self, condition):
        limit = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), limit, f"not within a minute; processes: {self.processes()}")
            time.sleep(0.05)

    def processes(self):
        found = {}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes()
                if os.fsencode(self.folder) in words + (process / "environ").read_bytes():
                    found[int(process.name)] = words
        return found

    def kill_all(self):
        while found := self.processes():
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def counted(self, name="part", **fields):
        return {"run": f'echo run >> "$OUT/{name}"', "files": ["in"], "packages": ["package"], **fields}

    def times(self, name):
        path = self.out / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    def check_last(self, line, printed):
        self.assertEqual(line, printed.splitlines()[-1], printed)

    def fails(self, says, **options):
        printed = self.run_parts("part", code=1, **options)
        self.assertRegex(printed, says)
        self.check_last("0 passed, 1 failed, 0 skipped", printed)

    def after(self, change, runs, *options):
        """A part has passed; after the change it is recalled, or it runs again."""
        self.table(part=self.counted())
        self.run_parts("part")
        change()
        printed = self.run_parts(*options, "part")
        self.assertEqual(self.times("part"), runs, printed)
        self.assertEqual("with the same inputs" in printed, runs == 1, printed)

    def test_an_unknown_part_is_refused_and_the_choices_are_named(self):
        self.table(one="true", two="true")
        self.assertRegex(self.run_parts("three", code=2), "`three`.* test, kernel, all.* one, two")

    def test_without_arguments_and_with_an_unknown_option_it_prints_its_usage(self):
        self.table(part="true")
        for arguments in ([], ["--again"], ["--what", "part"], ["part", "-x"]):
            self.assertIn("Usage: tests/run", self.run_parts(*arguments, code=2))

    def test_a_set_is_its_parts_and_a_list_runs_none(self):
        self.table(one={**self.counted(), "set": "test"}, two={**self.counted(), "set": "kernel"}, three=self.counted())
        self.assertEqual(self.run_parts("--list", "kernel", "three"), "two: what two shows\nthree: what three shows\n")
        self.assertEqual(self.times("part"), 0)

    def test_a_field_that_is_not_valid_is_named_with_its_part(self):
        for field, value in (("file", ["in"]), ("minutes", "2"), ("minutes", True), ("files", "in"), ("files", [1]),
                             ("alone", 1), ("run", 3), ("set", "tset")):
            with self.subTest(field=field, value=value):
                self.table(good="true", bad={"run": "true", field: value})
                self.assertRegex(self.run_parts("good", code=2), f"bad.*`{field}`")

    def test_a_part_without_a_command_is_refused_and_named(self):
        self.table(good="true", bad={})
        self.assertRegex(self.run_parts("good", code=2), "bad.*`run`")

    def test_a_table_that_is_not_toml_is_refused(self):
        for text in ("[parts.a\n", "[parts.a]\nrun = true true\n", ""):
            with self.subTest(text=text):
                (self.root / "tests/parts.toml").write_text(text)
                self.assertIn("parts.toml", self.run_parts("a", code=2))

    def test_uses_that_names_no_step_is_refused(self):
        self.table({"build": "true"}, bad={"run": "true", "uses": ["biuld"]})
        self.assertRegex(self.run_parts("bad", code=2), "bad: `uses` names biuld.*build")

    def test_a_part_that_has_passed_is_recalled_with_its_date_and_counts(self):
        self.table(part=self.counted(run='echo run >> "$OUT/part"; echo "test result: ok. 7 passed; 0 failed; 1 ignored"'))
        self.assertNotIn("with the same inputs", self.run_parts("part"))
        printed = self.run_parts("part")
        self.assertRegex(printed, r"part +passed .* 7 +on \d{4}-\d\d-\d\d, with the same inputs")
        self.check_last("7 passed, 0 failed, 0 skipped", printed)
        self.assertEqual(self.times("part"), 1)

    def test_a_part_runs_again_with_the_option_again(self):
        self.after(lambda: None, 2, "--again")

    def test_a_part_runs_again_after_one_of_its_files_has_changed(self):
        self.after(lambda: (self.root / "in/file").write_text("two"), 2)

    def test_a_part_runs_again_after_a_file_has_come(self):
        self.after(lambda: (self.root / "in/new").touch(), 2)

    def test_a_part_runs_again_after_a_file_has_gone(self):
        self.after((self.root / "in/file").unlink, 2)

    def test_a_part_runs_again_after_the_mode_of_a_file_has_changed(self):
        self.after(lambda: (self.root / "in/file").chmod(0o755), 2)

    def test_a_part_runs_again_after_its_command_has_changed(self):
        self.after(lambda: self.table(part=self.counted(run='echo another run >> "$OUT/part"')), 2)

    def test_a_part_runs_again_after_rust_has_changed(self):
        self.after(lambda: self.program("rustc", "rustc 2"), 2)

    def test_a_part_runs_again_after_one_of_its_packages_has_changed(self):
        self.after(lambda: self.program("dpkg-query", "ii  package 2"), 2)

    def test_a_part_is_recalled_after_a_file_that_is_not_its_own_has_changed(self):
        self.after(lambda: (self.root / "other").write_text("two"), 1)

    def test_a_part_is_recalled_after_its_files_are_again_what_they_were(self):
        self.after(lambda: (self.root / "in/file").write_text("two"), 2)
        (self.root / "in/file").write_text("one")
        self.assertIn("with the same inputs", self.run_parts("part"))

    def test_the_oldest_results_of_a_part_are_removed(self):
        self.table(part=self.counted())
        for number in range(24):
            (self.root / "in/file").write_text(f"{number}")
            self.run_parts("part")
        self.assertEqual(len(list((self.cache / "passed").iterdir())), 20)
        self.assertIn("with the same inputs", self.run_parts("part"))

    def test_a_part_whose_file_changes_while_it_runs_is_not_recalled(self):
        self.table(part=self.counted(run='echo run | tee -a "$OUT/part" >> in/file'))
        self.assertIn("changed meanwhile", self.run_parts("part"))
        self.run_parts("part")
        self.assertEqual(self.times("part"), 2)

    def test_without_git_everything_runs_each_time(self):
        shutil.rmtree(self.root / ".git")
        self.after(lambda: None, 2)

    def test_a_part_that_fails_shows_the_end_of_its_log_and_is_not_recalled(self):
        self.table(part=self.counted(run='echo run >> "$OUT/part"; seq 1000 1099; false'))
        self.fails(r"\.\.\.\n(10[1-9]\d\n)+\n")
        self.fails("failed")
        self.assertEqual(self.times("part"), 2)

    def test_the_tests_of_a_part_are_added_up_and_one_that_failed_fails_it_whatever_its_exit_code_is(self):
        for passed, failed, skipped, line in (
                (7, 0, 0, "test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.1s"),
                (1, 2, 0, "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out"),
                (3, 0, 0, "     Summary [   0.213s] 3 tests run: 3 passed (1 slow), 40 skipped"),
                (1, 2, 0, "     Summary [   0.213s] 3 tests run: 1 passed, 2 failed, 0 skipped"),
                (0, 1, 0, "     Summary [   0.213s] 1/2 tests run: 0 passed, 1 timed out, 0 skipped"),
                (5, 0, 2, "======== 5 passed, 2 skipped, 1 warning in 65.12s (0:01:05) ========"),
                (1, 2, 0, "2 failed, 1 passed in 0.12s"), (0, 1, 0, "==== 1 failed in 0.12s ===="),
                (0, 2, 1, "==== 1 skipped, 2 errors in 0.12s ===="),
                (4, 0, 3, "# Totals: pass:4 fail:0 xfail:0 xpass:0 skip:3 error:0"),
                (1, 2, 0, "# Totals: pass:1 fail:1 xfail:0 xpass:0 skip:0 error:1")):
            with self.subTest(line=line):
                self.table(part=f"echo '{line}'; echo; echo '{line}'")
                printed = self.run_parts("part", code=int(failed > 0))
                self.check_last(f"{2 * passed} passed, {2 * failed} failed, {2 * skipped} skipped", printed)

    def test_an_unstable_test_is_named_and_its_first_failure_does_not_count(self):
        self.table(part="echo ' Summary [ 0.1s] 2 tests run: 1 passed, 1 failed'\n"
                        "echo ' Summary [ 0.1s] 1 test run: 1 passed'\necho 'unstable: busbar a::test'")
        printed = self.run_parts("part")
        self.assertRegex(printed, "(?m)^part +passed .*unstable: busbar a::test$")
        self.assertEqual(printed.splitlines()[-2:], ["unstable: part: busbar a::test", "2 passed, 0 failed, 0 skipped"])

    def test_a_part_whose_machine_had_a_fault_is_run_once_more_and_named(self):
        self.table(part="""echo run >>"$OUT/runs"
            [ "$(wc -l <"$OUT/runs")" = 2 ] || { echo "test result: FAILED. 3 passed; 1 failed"; exit 75; }
            echo "test result: ok. 4 passed; 0 failed" """)
        printed = self.run_parts("part")
        self.assertIn("unstable: part: its machine", printed)
        self.assertIn("4 passed", printed)
        self.assertEqual((self.out / "runs").read_text(), "run\nrun\n")
        self.table(part='echo run >>"$OUT/more"; exit 75')
        self.run_parts("part", code=1)
        self.assertEqual((self.out / "more").read_text(), "run\nrun\n")

    def test_a_part_whose_program_is_missing_is_skipped_and_fails_the_run_only_where_nothing_has_passed(self):
        self.table({"build": self.counted("build")}, other="true", part=self.counted(needs=["no-such"], uses=["build"]))
        for chosen, code in (("part", 1), ("all", 0)):
            lines = self.run_parts(chosen, code=code).splitlines()
            self.assertEqual(lines[-2:], ["skipped: part (there is no no-such)", f"{1 - code} passed, 0 failed, 1 skipped"])
        self.assertEqual(self.times("build"), 0)

    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_a_part_with_a_package_that_apt_does_not_know_is_skipped_and_others_run(self):
        self.program("apt-cache", "package\nother")
        self.table(one=self.counted(packages=["no-such"]), two=self.counted("two"))
        self.assertIn("skipped: one (apt does not know no-such)", self.run_parts("all"))
        self.assertEqual((self.times("part"), self.times("two")), (0, 1))

    def test_without_rust_a_part_runs_that_needs_none(self):
        # All programs of the machine, without its Rust.
        bin = self.folder / "bin"
        names = ("bash", "cat", "env", "git", "python3", "setpriv", "sh", "true", "unshare")
        for path in filter(None, map(shutil.which, names)):
            if not (bin / pathlib.Path(path).name).exists():
                (bin / pathlib.Path(path).name).symlink_to(path)
        (bin / "cargo").unlink()
        self.program("apt-cache", "")
        self.env["PATH"] = str(bin)
        self.table({"build": "true"}, one=self.counted(run="cargo x"), two=self.counted(uses=["build"]), three="true")
        printed = self.run_parts("all")
        self.assertRegex(printed, "skipped: one .*rustc-web.*, two .*rustc-web")
        self.check_last("1 passed, 0 failed, 2 skipped", printed)

    def test_what_uses_a_step_that_fails_is_skipped(self):
        self.table({"build": "false"}, part=self.counted(uses=["build"]), other=self.counted("other"))
        lines = self.run_parts("all", code=1).splitlines()
        self.assertEqual(lines[-2:], ["skipped: part (build has failed)", "1 passed, 1 failed, 1 skipped"])
        self.assertEqual((self.times("part"), self.times("other")), (0, 1))

    def test_a_step_runs_only_for_a_part_that_runs_and_does_not_count(self):
        self.table({"build": self.counted("build")}, part=self.counted(uses=["build"]), other=self.counted("other"))
        for chosen, times, passed in (("other", 0, 1), ("part", 1, 1), ("all", 1, 2)):
            self.check_last(f"{passed} passed, 0 failed, 0 skipped", self.run_parts(chosen))
            self.assertEqual(self.times("build"), times, chosen)

    def test_a_part_that_is_not_done_in_time_fails(self):
        text, found = self.runner.read_text(), "part.minutes * 60"
        self.assertEqual(text.count(found), 1)
        self.runner.write_text(text.replace(found, "part.minutes * 1"))
        self.table(part={"run": HOLD, "minutes": 1})
        self.fails("not done in 1 minute")
        self.until(lambda: not self.processes())

    def interrupt(self, number):
        """Ends the runner while its part runs: nothing of the part is left, and it is not recalled."""
        strays = f'{STRAY}mount -t tmpfs none in; mountpoint in > "$OUT/mounted"' if OWN else "sleep 600 &"
        script = f'[ ! -e "$OUT/up" ] || exit 0\ntrap "exit 0" TERM\n{strays}\n{HOLD} || true'
        self.table(part=script, next=self.counted("next", alone=True))
        process = self.start("all")
        self.assertEqual((len(self.processes()) > 1, (self.out / "mounted").exists()), (True, OWN))
        process.send_signal(number)
        self.assertEqual(process.wait(120), -number if number == signal.SIGKILL else 128 + number)
        self.until(lambda: not self.processes())
        self.assertNotIn(str(self.folder), pathlib.Path("/proc/self/mountinfo").read_text())
        if number != signal.SIGKILL:
            lines = (self.folder / "output").read_text().splitlines()
            self.assertEqual(lines[-2:], ["skipped: next (interrupted)", "0 passed, 1 failed, 1 skipped"])
        self.assertEqual(self.times("next"), 0)
        self.assertNotIn("with the same inputs", self.run_parts("part"))

    def test_after_sigint_nothing_of_a_part_is_left_and_it_is_not_recalled(self):
        self.interrupt(signal.SIGINT)

    def test_after_sigterm_nothing_of_a_part_is_left_and_it_is_not_recalled(self):
        self.interrupt(signal.SIGTERM)

    @unittest.skipUnless(OWN, "needs root")
    def test_after_sigkill_nothing_of_a_part_is_left_and_it_is_not_recalled(self):
        self.interrupt(signal.SIGKILL)

    def test_when_nobody_reads_what_it_prints_the_run_ends_with_what_it_has_started(self):
        self.table(hold=HOLD, first='until [ -e "$OUT/go" ]; do sleep 0.1; done', after="true")
        process = subprocess.Popen([self.runner, "all"], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.until(lambda: (self.out / "up").exists())
        process.stdout.close()
        (self.out / "go").touch()
        self.assertEqual(process.wait(120), 141)
        self.until(lambda: not self.processes())

    @unittest.skipUnless(OWN, "needs root")
    def test_what_a_part_leaves_behind_ends_with_it(self):
        self.table(part=STRAY)
        self.run_parts("part")
        self.until(lambda: not self.processes())

    def test_a_command_of_a_part_is_not_its_first_process(self):
        # That one ignores signals, and has orphans to collect: a shell can do it.
        self.table(part="python3 -c 'import os; assert os.getpid() != 1'")
        self.run_parts("part")

    def test_a_part_ignores_no_signal_that_its_runner_ignores(self):
        self.table(part='grep SigIgn: /proc/self/status >"$OUT/ignored"')
        shell = ["sh", "-c", 'trap "" INT QUIT HUP USR1; exec "$@"', "sh"]
        self.run_parts("part", before=shell)
        # Of those with a name: the C library has 32 and 33 for itself.
        self.assertEqual(int((self.out / "ignored").read_text().split()[1], 16) & 0x7fffffff, 0)

    def test_logs_that_cannot_be_written_are_said(self):
        (self.root / "target").mkdir()
        (self.root / "target/tests").touch()
        self.table(part="true")
        self.assertIn("cannot write logs", self.run_parts("part", code=1))

    def test_a_part_whose_log_cannot_be_written_fails(self):
        (self.root / "target/tests/part.log").mkdir(parents=True)
        self.table(part=self.counted())
        self.fails("part: failed.*part.log")

    def test_a_part_whose_result_cannot_be_kept_fails(self):
        self.cache.mkdir()
        (self.cache / "passed").touch()
        self.table(part="true")
        self.fails("part: failed.*cannot keep its result")

    @unittest.skipUnless(OWN, "needs root")
    def test_a_part_that_fills_the_disk_does_not_pass(self):
        (self.root / "target").mkdir()
        mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none target && exec "$@"', "sh"]
        for status in ("", "|| true"):
            with self.subTest(status=status):
                self.table(part=f"head -c 2M /dev/zero {status}")
                self.fails("part: failed.*(disk.*full|No space left)", before=mount)

    def test_a_second_run_in_the_same_tree_is_refused(self):
        self.table(part='touch "$OUT/up"; until [ -e "$OUT/go" ]; do sleep 0.1; done', other=self.counted())
        process = self.start("part")
        self.assertIn("another run is under way", self.run_parts("other", code=1))
        (self.out / "go").touch()
        self.assertEqual(process.wait(120), 0)

    @unittest.skipIf((os.cpu_count() or 1) < 2, "needs two processors")
    def test_two_parts_run_at_the_same_time(self):
        meet = 'touch "$OUT/{}"; until [ -e "$OUT/{}" ]; do sleep 0.1; done'
        self.table(one=meet.format("one", "two"), two=meet.format("two", "one"))
        self.check_last("2 passed, 0 failed, 0 skipped", self.run_parts("all"))

    def test_nothing_runs_beside_a_part_that_runs_alone(self):
        """Each looks out for the other for a second, and fails if it sees it."""
        part = 'touch "$OUT/{0}"; for i in {{1..10}}; do [ ! -e "$OUT/{1}" ]; sleep 0.1; done; rm "$OUT/{0}"'
        alone, other = {"run": part.format("alone", "other"), "alone": True}, part.format("other", "alone")
        for parts in ({"alone": alone, "other": other}, {"other": other, "alone": alone}):
            with self.subTest(parts=list(parts)):
                self.table(**parts)
                self.check_last("2 passed, 0 failed, 0 skipped", self.run_parts("--again", "all"))


if __name__ == "__main__":
    # A shell in the background has it ignored, and so would the runner.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()

"""The `sluice` command as a user meets it: exit codes, messages, files left behind, signals.

    cli_test.py SLUICE [TestCase.test ...]

SLUICE_TEST_MODEL names a SmolLM2-135M-Instruct GGUF; tests that need it are skipped without it
(failed with SLUICE_TEST_STRICT=1).
"""

import ctypes
import json
import os
import pathlib
import pty
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SLUICE = ""
WORK = None


def sluice(*arguments, expect=0, **options):
    result = subprocess.run([SLUICE, *map(str, arguments)], capture_output=True, text=True,
                            timeout=600, **options)
    if expect is not None and result.returncode != expect:
        raise AssertionError(f"{arguments}: exit {result.returncode}, expected {expect}\n"
                             f"{result.stdout}{result.stderr}")
    return result


def model():
    path = os.environ.get("SLUICE_TEST_MODEL")
    if path:
        return path
    if os.environ.get("SLUICE_TEST_STRICT") == "1":
        raise AssertionError("SLUICE_TEST_MODEL is not set")
    raise unittest.SkipTest("SLUICE_TEST_MODEL is not set")


def pack():
    """A pack of the model without calibration, made once."""
    path = WORK / "smollm2.gguf"
    if not path.exists():
        sluice("pack", model(), "--no-calibration", "-o", path)
    return path


def one_error(test, result):
    lines = result.stderr.strip().splitlines()
    errors = [line for line in lines if line.startswith("sluice: error: ")]
    test.assertEqual(len(errors), 1, result.stderr)
    return errors[0]


class Usage(unittest.TestCase):
    def test_wrong_usage_exits_with_2(self):
        for arguments in ([], ["nonsense"], ["run"], ["run", "x"], ["pack"], ["ppl", "x"],
                          ["run", "x", "-p", "y", "--threads", "-1"], ["pull", "a", "b"],
                          # What would have no effect.
                          ["run", "x", "-p", "y", "--raw", "--system", "z"],
                          ["run", "x", "-p", "y", "--raw", "--chat-template", "gemma"],
                          ["ppl", "x", "y", "--source", "z"],
                          ["bench", "x", "-n", 0, "-d", 5],
                          ["bench", "x", "-n", 0, "-p", 0], ["bench"]):
            sluice(*arguments, expect=2)

    def test_every_command_explains_itself(self):
        for command in ("pull", "pack", "inspect", "chat", "run", "bench", "ppl", "verify",
                        "doctor"):
            self.assertIn("--help", sluice(command, "--help").stdout)

    def test_missing_files_are_named(self):
        for arguments in (["run", "/no/such.gguf", "-p", "x"], ["pack", "/no/such.gguf"],
                          ["inspect", "/no/such.gguf"], ["ppl", "/no/such.gguf", "/etc/passwd"],
                          ["verify", "/no/such.gguf"], ["chat", "/no/such.gguf"],
                          ["bench", "/no/such.gguf"]):
            self.assertIn("such.gguf", one_error(self, sluice(*arguments, expect=1)))

    def test_values_out_of_range_are_wrong_usage_in_one_line(self):
        run = ["run", "x", "-p", "y"]
        for command, option, values in (
                (run, "--temp", ("nan", "inf", "-1", "1e999", "warm", "")),
                (run, "--top-k", ("-1", "4294967296", "1.5")),
                (run, "--top-p", ("nan", "2", "0")),
                (run, "--min-p", ("nan", "2", "-0.1")),
                (run, "--repeat-penalty", ("nan", "0", "-1", "101")),
                (run, "--repeat-last-n", ("-1", "99999999")),
                (run, "--seed", ("-1", "1e3", "18446744073709551616")),
                (run, "-n", ("-1", "4294967296", "x")),
                (run, "--threads", ("-1", "1025", "x")),
                (run, "--context", ("-1", "65536")),
                (run, "--stop", ("",)),
                (run, "--engine", ("abacus",)),
                (run, "--chat-template", ("none",)),
                (["chat", "x"], "--temp", ("nan",)),
                (["ppl", "x", "y"], "--tokens", ("-1",)),
                (["ppl", "x", "y"], "--window", ("1", "nan")),
                (["bench", "x"], "-p", ("-1", "65536", "x")),
                (["bench", "x"], "-n", ("-1", "65536", "1.5")),
                (["bench", "x"], "-d", ("-1", "65536", "x")),
                (["bench", "x"], "-r", ("0", "-1")),
                (["verify", "x"], "--tokens", ("0", "-1")),
                (["verify", "x"], "--block", ("0", "65")),
                (["pack", "x"], "--calibration-tokens", ("-1", "1")),
                (["pack", "x"], "--calibration-window", ("-1", "1")),
                (["pack", "x"], "-o", ("",)),
                (["pack", "x"], "--context", ("-1",))):
            for value in values:
                with self.subTest(option=option, value=value):
                    result = sluice(*command, option, value, expect=2)
                    line = one_error(self, result)
                    self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                    long = {"-n": "--max-tokens", "-o": "--output"}
                    if command[0] == "bench":
                        long = {"-p": "--n-prompt", "-n": "--n-gen", "-d": "--n-depth",
                                "-r": "--repetitions"}
                    name = long.get(option, option)
                    self.assertIn(f"{name}: {value}" if value else f"{name}: ", line)

    def test_wrong_words_are_named_in_the_order_given(self):
        self.assertIn("bogus: no such command", one_error(self, sluice("bogus", expect=2)))
        self.assertIn("not expected: b --nosuch c",
                      one_error(self, sluice("run", "x", "-p", "a", "b", "--nosuch", "c",
                                             expect=2)))

    def test_json_takes_file_names_that_are_no_text(self):
        environment = dict(os.environ, SLUICE_CACHE=os.fsdecode(bytes(WORK) + b"/\xff"))
        self.assertIsInstance(json.loads(sluice("doctor", "--json", env=environment).stdout), list)

    def test_messages_hold_no_control_characters(self):
        result = sluice("inspect", "/no/such\n\x1b[2Jfile", expect=1)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertNotIn("\x1b", result.stderr)

    def test_what_is_no_model_is_told_so(self):
        text = WORK / "notes.md"
        text.write_text("# notes")
        folder = WORK / "empty-folder"
        folder.mkdir()
        for command in (["inspect"], ["pack"], ["run", "-p", "x"]):
            self.assertIn("GGUF file", one_error(self, sluice(*command, text, expect=1)))
        self.assertIn("without config.json", one_error(self, sluice("pack", folder, expect=1)))
        self.assertIn("without config.json", one_error(self, sluice("inspect", folder, expect=1)))
        self.assertIn("sluice pack", one_error(self, sluice("run", folder, "-p", "x", expect=1)))
        for name in ("no-such-name", "folder/no-such.gguf", ""):
            error = one_error(self, sluice("pack", name, expect=1))
            self.assertTrue("no such file" in error or "empty name" in error, error)

    def test_a_recipe_with_a_huge_number_is_named(self):
        recipe = WORK / "huge.json"
        recipe.write_text("4E491")
        source = WORK / "source.gguf"
        source.write_text("GGUF")
        self.assertIn("huge.json", one_error(self, sluice("pack", source, "--recipe", recipe,
                                                          expect=1)))

    def test_a_catalogue_name_means_the_catalogue_also_beside_a_file_of_that_name(self):
        name = "smollm2-135m-instruct"
        folder = WORK / "shadow"
        (folder / name).mkdir(parents=True)
        place = {"cwd": folder, "env": dict(os.environ, SLUICE_CACHE=str(WORK / "no-cache"))}
        result = sluice("run", name, "-p", "x", expect=1, **place)
        self.assertIn("no pack of that name", one_error(self, result))
        self.assertIn(f"./{name} would be the one in this folder", result.stderr)
        result = sluice("run", f"./{name}", "-p", "x", expect=1, **place)
        self.assertIn("a folder", one_error(self, result))
        self.assertNotIn("catalogue", result.stderr)

    def test_a_path_with_a_slip_is_no_name(self):
        for path in ("folder/no-such.gguf", "no-such.gguf", "./no-such", "no-such/", "a/b/c"):
            for command in (["run", "-p", "x"], ["pack"], ["inspect"]):
                error = one_error(self, sluice(*command, path, expect=1))
                self.assertTrue(error.endswith(": no such file"), error)

    def test_without_a_home_no_pack_is_looked_for_in_the_working_folder(self):
        environment = {"PATH": os.environ["PATH"]}
        error = one_error(self, sluice("run", "x", "-p", "y", expect=1, env=environment))
        self.assertIn("SLUICE_CACHE or HOME", error)

    def test_doctor_makes_no_folder(self):
        environment = dict(os.environ, SLUICE_CACHE=str(WORK / "not-there" / "cache"))
        cache = [f for f in json.loads(sluice("doctor", "--json", env=environment).stdout)
                 if f["what"] == "cache"]
        self.assertEqual(cache[0]["state"], "ok")
        self.assertFalse((WORK / "not-there").exists())
        environment["SLUICE_CACHE"] = "/etc/hosts/cache"
        sluice("doctor", expect=1, env=environment)

    def test_doctor_finds_the_kernels(self):
        environment = dict(os.environ, SLUICE_CACHE=str(WORK / "cache"))
        findings = json.loads(sluice("doctor", "--json", env=environment).stdout)
        self.assertTrue(any(f["what"] == "kernels" for f in findings))
        environment["SLUICE_ISA"] = "abacus"
        sluice("doctor", expect=1, env=environment)


class Packing(unittest.TestCase):
    def test_a_pack_lists_in_the_gguf_package(self):
        from gguf import GGUFReader
        reader = GGUFReader(pack())
        names = [tensor.name for tensor in reader.tensors]
        self.assertEqual(names[0], "sluice.program")
        self.assertEqual(names[-1], "token_embd.weight")
        self.assertEqual(len(names), 3 + 30 * 8 + 2)
        self.assertTrue(all(tensor.data_offset % 4096 == 0 for tensor in reader.tensors))

    def test_threads_do_not_change_the_bytes(self):
        path = WORK / "one-thread.gguf"
        sluice("pack", model(), "--no-calibration", "-o", path, "--threads", 1)
        self.assertEqual(path.read_bytes(), pack().read_bytes())

    def test_a_full_disk_ends_in_one_error_and_no_file(self):
        folder = WORK / "full"
        folder.mkdir()
        command = f"ulimit -f 20000; exec {SLUICE} pack {model()} --no-calibration -o {folder}/x.gguf"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("x.gguf", one_error(self, result))
        self.assertEqual(list(folder.iterdir()), [])

    def test_an_interrupted_pack_leaves_nothing(self):
        for stop in (signal.SIGINT, signal.SIGTERM):
            folder = WORK / f"interrupted-{stop}"
            folder.mkdir()
            process = subprocess.Popen([SLUICE, "pack", model(), "--no-calibration", "-o",
                                        folder / "x.gguf"], stderr=subprocess.DEVNULL)
            while not list(folder.iterdir()):
                time.sleep(0.01)
            process.send_signal(stop)
            self.assertEqual(process.wait(), 128 + stop)
            self.assertEqual(list(folder.iterdir()), [])

    def test_a_damaged_pack_is_refused(self):
        data = bytearray(pack().read_bytes())
        damaged = WORK / "damaged.gguf"
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        self.assertIn("checksum", one_error(self, sluice("verify", damaged, expect=1)))
        damaged.write_bytes(data[: len(data) // 2])
        one_error(self, sluice("run", damaged, "-p", "x", expect=1))

    def test_packing_again_does_only_what_is_new(self):
        path = WORK / "again.gguf"
        make = ["pack", model(), "--no-calibration", "-o", path]
        self.assertNotIn("already", sluice(*make).stderr)
        self.assertIn("already", sluice(*make).stderr)
        first = path.read_bytes()
        self.assertNotIn("already", sluice(*make, "--recipe", "compact").stderr)
        self.assertLess(path.stat().st_size, len(first))

    def test_it_replaces_no_file_of_another_kind(self):
        other = WORK / "notes.txt"
        other.write_text("notes")
        make = ["pack", model(), "--no-calibration"]
        one_error(self, sluice(*make, "-o", other, expect=1))
        one_error(self, sluice(*make, "-o", WORK, expect=1))
        one_error(self, sluice(*make, "-o", "/dev/null", "--force", expect=1))
        one_error(self, sluice(*make, "-o", model(), "--force", expect=1))
        one_error(self, sluice(*make, "-o", WORK / "no-such-folder" / "x", expect=1))
        one_error(self, sluice("pack", pack(), "-o", WORK / "twice.gguf", expect=1))
        self.assertEqual(other.read_text(), "notes")

    def test_calibration_on_nothing_is_refused(self):
        text = WORK / "short.txt"
        text.write_text("too short")
        one_error(self, sluice("pack", model(), "--calibrate", text, "-o", WORK / "y.gguf",
                               expect=1))

    def test_the_source_cannot_be_run_unpacked(self):
        error = one_error(self, sluice("run", model(), "-p", "x", expect=1))
        self.assertIn("sluice pack", error)


class Running(unittest.TestCase):
    def test_executors_write_the_same_text(self):
        arguments = [pack(), "-p", "Name a river.", "-n", 6, "--temp", 1, "--seed", 7, "--quiet"]
        fast = sluice("run", *arguments).stdout
        self.assertEqual(fast, sluice("run", *arguments, "--engine", "ref").stdout)
        self.assertEqual(fast, sluice("run", *arguments, "--threads", 1).stdout)

    def test_executors_agree_bit_by_bit(self):
        result = json.loads(sluice("verify", pack(), "--tokens", 10, "--json").stdout)
        self.assertTrue(result["equal"])
        self.assertGreater(result["values"], 1_000_000)

    def test_it_knows_the_capital_of_france(self):
        result = sluice("run", pack(), "-p", "What is the capital of France?", "-n", 20)
        self.assertIn("Paris", result.stdout)

    def test_memory_stays_near_the_pack(self):
        answer = json.loads(sluice("run", pack(), "-p", "Tell a story.", "-n", 64, "--json").stdout)
        kv = json.loads(sluice("inspect", pack(), "--json").stdout)["kv_bytes_per_position"]
        limit = pack().stat().st_size + 200 * kv + 60_000_000
        self.assertLess(answer["peak_memory_bytes"], limit)

    def test_stop_strings_and_limits_end_the_answer(self):
        answer = json.loads(sluice("run", pack(), "-p", "Count to ten.", "-n", 5, "--json").stdout)
        self.assertEqual((answer["finish"], len(answer["tokens"])), ("length", 5))
        answer = json.loads(sluice("run", pack(), "-p", "What is the capital of France?",
                                   "--stop", "Paris", "-n", 30, "--json").stdout)
        self.assertEqual(answer["finish"], "stop")
        self.assertNotIn("Paris", answer["text"])

    def test_output_that_cannot_be_written_is_a_failure(self):
        for command in (["inspect", pack()], ["run", pack(), "-p", "x", "-n", 2], ["doctor"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run([SLUICE, *map(str, command)], stdout=full,
                                        stderr=subprocess.PIPE, text=True)
            self.assertEqual(result.returncode, 1, command)
            with open("/dev/full", "w") as full:
                result = subprocess.run([SLUICE, *map(str, command)], stdout=full, stderr=full)
            self.assertEqual(result.returncode, 1, command)

    def test_bad_options_are_named(self):
        for command in (["run", pack(), "-p", "x"], ["verify", pack()]):
            self.assertIn("--context: 65000, expected at most the 8192",
                          one_error(self, sluice(*command, "--context", 65000, expect=1)))
        self.assertIn("--tokens: 9000",
                      one_error(self, sluice("verify", pack(), "--tokens", 9000, expect=1)))

    def test_a_prompt_that_does_not_fit_is_not_cut(self):
        result = sluice("run", pack(), "-p", "x y " * 500, "--context", 64, expect=1)
        self.assertRegex(one_error(self, result), r"prompt: 1\d\d\d tokens, .* context's 64$")
        self.assertEqual(result.stdout, "")

    def test_zero_is_every_core_and_the_whole_context(self):
        arguments = ["run", pack(), "-p", "x", "-n", 3, "--quiet"]
        self.assertEqual(sluice(*arguments, "--threads", 0, "--context", 0).stdout,
                         sluice(*arguments).stdout)

    def test_a_prompt_comes_also_from_standard_input(self):
        arguments = ["run", pack(), "-n", 6, "--quiet"]
        asked = sluice(*arguments, "-p", "Name a river.").stdout
        for text in ("Name a river.", "Name a river.\n", "Name a river.\r\n"):
            self.assertEqual(asked, sluice(*arguments, "-f", "-", input=text).stdout)
        path = WORK / "prompt.txt"
        path.write_text("Name a river.\n")
        self.assertEqual(asked, sluice(*arguments, "-f", path).stdout)
        closed = subprocess.run(["bash", "-c", f"exec {SLUICE} run {pack()} -f - <&-"],
                                capture_output=True, text=True)
        self.assertEqual(closed.returncode, 1)
        self.assertIn("standard input", one_error(self, closed))

    def test_it_stops_when_nobody_reads_the_answer(self):
        for command in (f"run {pack()} -p 'Write a long story.' -n 0 2>/dev/null",
                        f"chat {pack()} -n 0 2>/dev/null"):
            start = time.time()
            subprocess.run(["bash", "-c", f"yes 'Write a long story.' | {SLUICE} {command} | head -c 1"],
                           stdout=subprocess.DEVNULL, timeout=60)
            self.assertLess(time.time() - start, 20)

    def test_bench_prints_a_row_for_each_test(self):
        result = sluice("bench", pack(), "-p", "5,9", "-n", 3, "-d", "0,20", "-r", 2)
        rows = [[cell.strip() for cell in line.strip("|").split("|")]
                for line in result.stdout.splitlines() if line.startswith("|")][2:]
        self.assertEqual([row[0] for row in rows], ["pp5", "pp9", "tg3", "tg3 @ d20"])
        for row in rows:
            low, high = map(float, row[2].split(" .. "))
            self.assertTrue(0 < low <= float(row[1]) <= high, row)
        self.assertRegex(rows[2][5], r"^\d+\.\d %$")
        self.assertGreater(float(rows[3][3]), float(rows[2][3]))
        self.assertRegex(result.stdout, r"median \d+\.\d\d GB/s .* of 8 readings")
        self.assertIn("tokens of seed 1", result.stdout)

    def test_bench_gives_every_sample_as_json(self):
        arguments = ["bench", pack(), "-p", 7, "-n", 3, "-d", "0,20", "-r", 3, "--threads", 1,
                     "--json"]
        result = json.loads(sluice(*arguments).stdout)
        self.assertEqual((result["executor"], result["threads"], result["seed"]), ("cpu", 1, 1))
        self.assertEqual([(t["kind"], t["tokens"], t["depth"]) for t in result["tests"]],
                         [("prefill", 7, 0), ("decode", 3, 0), ("decode", 3, 20)])
        for test in result["tests"]:
            rates = sorted(test["tokens"] / s for s in test["seconds"])
            self.assertEqual(len(rates), 3)
            spread = test["tokens_per_second"]
            for name, rate in zip(("min", "median", "max"), rates):
                self.assertAlmostEqual(spread[name] / rate, 1, places=6)
        read = result["read_bandwidth"]
        self.assertEqual(len(read["samples"]), 9)
        self.assertEqual(read["best"], max(read["samples"]))
        self.assertEqual(read["median"], sorted(read["samples"])[4])
        shown = json.loads(sluice("inspect", pack(), "--json").stdout)
        deep = result["tests"][2]
        self.assertEqual(deep["bytes_per_token"],
                         shown["bytes_per_token"] + 21 * shown["kv_bytes_per_position"])
        self.assertAlmostEqual(
            deep["share_of_read_bandwidth"] * read["median"] /
            (deep["bytes_per_token"] * deep["tokens_per_second"]["median"]), 1, places=6)

    def test_decode_does_not_collapse_beside_another_program_or_with_many_threads(self):
        cores = len(os.sched_getaffinity(0))

        def rate(threads):
            result = sluice("bench", pack(), "-p", 0, "-n", 32, "-d", 0, "-r", 3, "--json",
                            "--threads", threads)
            return json.loads(result.stdout)["tests"][0]["tokens_per_second"]["median"]

        alone = rate(cores)
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            beside = rate(cores)
        finally:
            busy.kill()
            busy.wait()
        crowded = rate(4 * cores)
        print(f"decode: {alone:.0f} tok/s alone, {beside:.0f} beside a busy core, "
              f"{crowded:.0f} with four threads to a core")
        # In proportion would be at least half; a barrier on which spinning threads wait for one
        # that does not run costs a time slice each, a hundredth.
        self.assertGreater(beside, alone / 5)
        self.assertGreater(crowded, alone / 5)

    def test_bench_needs_room_in_the_context(self):
        for arguments, words in ((["-d", "8190"], "tg64 @ d8190: 8254 positions"),
                                 (["--context", 32], "pp128: 128 positions"),
                                 (["-p", "9000"], "pp9000: 9000 positions"),
                                 (["-d", "90", "--context", 100], "tg64 @ d90: 154 positions")):
            error = one_error(self, sluice("bench", pack(), *arguments, expect=1))
            self.assertIn(words, error)
            self.assertIn("at most the context's", error)
        short = ["bench", pack(), "--context", 200, "-n", 8, "-r", 1, "--json"]
        self.assertEqual([t["test"] for t in json.loads(sluice(*short).stdout)["tests"]],
                         ["pp128", "tg8"])

    def test_lock_keeps_the_pack_in_memory_or_warns_and_goes_on(self):
        def forbid():
            ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)  # root: without CAP_IPC_LOCK after exec
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        bench = ["bench", pack(), "-p", 2, "-n", 1, "-d", 0, "-r", 1, "--json", "--lock"]
        result = sluice(*bench)
        if "warning" not in result.stderr:
            locked = json.loads(result.stdout)["locked_bytes"]
            if locked == 0:
                self.skipTest("mlock does nothing here, as under the address sanitizer")
            self.assertGreaterEqual(locked, pack().stat().st_size)
        self.assertIn("RLIMIT_MEMLOCK", sluice(*bench, preexec_fn=forbid).stderr)
        run = ["run", pack(), "-p", "Name a river.", "-n", 3, "--quiet"]
        result = sluice(*run, "--lock", preexec_fn=forbid)
        self.assertRegex(result.stderr, "^sluice: warning: .*RLIMIT_MEMLOCK .*going on without\n$")
        self.assertEqual(result.stdout, sluice(*run).stdout)

    def test_perplexity_against_float(self):
        text = WORK / "text.txt"
        text.write_text("A river is a natural stream of fresh water that flows on land. " * 8)
        result = json.loads(sluice("ppl", pack(), text, "--against", "float", "--source", model(),
                                   "--json").stdout)
        self.assertGreater(result["predictions"], 80)
        self.assertLess(result["mean_kl"], 0.5)
        self.assertGreater(result["mean_kl"], 0)
        self.assertGreater(result["same_top"], 0.5)

    def test_a_message_to_chat_that_does_not_fit_is_refused_and_the_conversation_goes_on(self):
        numbers = " ".join(map(str, range(200)))
        lines = [numbers, "Hello.", numbers, "/show", "Tell me a story.", "/clear", "Hello."]
        result = sluice("chat", pack(), "--context", 100, "-n", 10,
                        input="\n".join(lines) + "\n")
        self.assertRegex(result.stdout, r"error: this message: \d+ tokens, .* context's 100;")
        self.assertRegex(result.stdout,
                         r"error: the conversation with this message: \d+ tokens, .*/clear")
        self.assertIn("2 messages", result.stdout)

    def test_an_answer_that_the_context_cuts_is_told_so(self):
        result = sluice("chat", pack(), "--context", 50, "-n", 0, "--temp", 0,
                        input="Write a long story about the sea.\n")
        self.assertIn("the context's 50 tokens are full", result.stderr)

    def test_a_last_line_that_asks_for_more_is_answered(self):
        result = sluice("chat", pack(), "-n", 3, "--temp", 0, input="Hello.\\")
        self.assertIn("[3 tokens answered", result.stderr)


class Chatting(unittest.TestCase):
    def setUp(self):
        path = pack()
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([SLUICE, "chat", path, "--temp", "0"], stdin=slave,
                                        stdout=slave, stderr=slave, start_new_session=True,
                                        preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))
        os.close(slave)
        self.seen = ""
        self.wait_for("> ")

    def tearDown(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def wait_for(self, text, seconds=120):
        """What the program printed up to and with `text`, from where the last wait ended."""
        end = time.time() + seconds
        while text not in self.seen:
            if time.time() > end:
                self.fail(f"waited for {text!r}; saw {self.seen[-2000:]!r}")
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    self.fail(f"ended; saw {self.seen[-2000:]!r}")
        cut = self.seen.index(text) + len(text)
        result, self.seen = self.seen[:cut], self.seen[cut:]
        return result

    def say(self, text):
        os.write(self.master, text.encode() + b"\n")

    def test_it_keeps_the_conversation_and_leaves(self):
        self.say("My name is Ada. Please remember it.")
        self.wait_for("tok/s")
        self.wait_for("> ")
        self.say("/show")
        self.assertIn("2 messages", self.wait_for("> "))
        self.say("/clear")
        self.wait_for("> ")
        self.say("/show")
        self.assertIn("0 messages", self.wait_for("> "))
        self.say("/bye")
        self.assertEqual(self.process.wait(timeout=20), 0)

    def test_ctrl_c_stops_the_answer_not_the_program(self):
        self.say("Write a very long story about the sea.")
        time.sleep(1.5)
        os.write(self.master, b"\x03")
        self.assertIn("cancelled", self.wait_for("> "))
        os.write(self.master, b"\x03")
        self.wait_for("leaves")
        self.say("/bye")
        self.assertEqual(self.process.wait(timeout=20), 0)

    def test_settings_change_and_wrong_ones_are_refused(self):
        self.say("/set temp 0.5")
        self.wait_for("> ")
        self.say("/set top-p 3")
        self.assertIn("--top-p: 3, expected", self.wait_for("> "))
        self.say("/set temp nan")
        self.assertIn("--temp: nan, expected", self.wait_for("> "))
        self.say("/set seed --help")
        self.assertIn("--seed: --help, expected", self.wait_for("> "))
        self.say("/show")
        self.assertIn("temp 0.5", self.wait_for("> "))
        self.say("/nonsense")
        self.assertIn("/help", self.wait_for("> "))


if __name__ == "__main__":
    SLUICE = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as folder:
        WORK = pathlib.Path(folder)
        unittest.main(argv=sys.argv, verbosity=2)

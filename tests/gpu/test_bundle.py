"""Packing and unpacking, with small archives: `python3 -m unittest discover -s tests/gpu`."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bundle
import pack
import parts
import picture
import unpack

BUNDLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bundle.py")
CAPACITY = 64 << 10


def write(path: str, data: bytes, mode: int = 0o644) -> None:
    """A file, with the folders above it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def content(path: str) -> bytes:
    """Everything in a file."""
    with open(path, "rb") as file:
        return file.read()


class Case(unittest.TestCase):
    """Three components in several parts, in a folder of their own."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="furrow-bundle-", dir="/var/tmp")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder)
        self.parts, self.root = self.at("parts"), self.at("root")
        noise = random.Random(7)
        write(self.at("stage/bin/furrow"), noise.randbytes(30_000), 0o700)
        write(self.at("stage/browser/chrome-headless-shell"), noise.randbytes(300_000), 0o755)
        write(self.at("stage/browser/lib/libx.so"), noise.randbytes(5_000), 0o600)
        write(self.at("stage/browser/fonts.conf.in"), b"<dir>@ROOT@/browser/fonts</dir>")
        write(self.at("stage/site/" + "deep/" * 30 + "module.py"), b"x = 1\n")
        self.manifest = self.pack()

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def pack(self) -> parts.Manifest:
        # A tree so large that each part has 64 KiB beside it.
        tree = 8 * parts.MEBIBYTE
        stages = [(name, self.at(f"stage/{name}")) for name in ("bin", "browser", "site")]
        return pack.pack(stages, self.at("work"), self.parts, "test", tree, tree + parts.MEBIBYTE)

    def unpack(self) -> parts.Manifest:
        return unpack.unpack(self.parts, self.root, say=lambda _: None)

    def packed_by_hand(self, *members: tarfile.TarInfo, unpacked: int = 0, files: int = 0) -> None:
        """Parts of one archive `bin` with these members, whose hashes are right."""
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as tar:
            for member in members:
                tar.addfile(member, io.BytesIO(bytes(member.size)))
        data = lzma.compress(plain.getvalue())
        sha256 = hashlib.sha256(data).hexdigest()
        write(os.path.join(self.parts, "001-bin.part"), data)
        parts.Manifest(
            "test",
            1,
            0,
            (parts.Archive("bin", sha256, 0, len(data), unpacked, files),),
            (parts.Part("001-bin.part", sha256, 0, len(data)),),
        ).write(os.path.join(self.parts, parts.MANIFEST))


class Packed(Case):
    """What packing makes."""

    def test_parts_leave_space_for_the_tree_and_hold_everything_end_to_end(self) -> None:
        for part in self.manifest.parts:
            self.assertLessEqual(pack.transfer_bytes(self.manifest, part, 2_000), self.manifest.limit)
        joined = b"".join(content(os.path.join(self.parts, part.file)) for part in self.manifest.parts)
        for archive in self.manifest.archives:
            piece = joined[archive.offset : archive.offset + archive.size]
            self.assertEqual(hashlib.sha256(piece).hexdigest(), archive.sha256)

    def test_the_same_files_make_the_same_bytes(self) -> None:
        shutil.rmtree(self.at("work"))
        for at, _, names in os.walk(self.at("stage")):
            for name in names:
                os.utime(os.path.join(at, name), (1, 1))
        self.assertEqual(self.pack(), self.manifest)

    def test_each_part_has_a_folder_that_can_be_sent_alone(self) -> None:
        self.addCleanup(setattr, pack, "_MANIFEST_BYTES", pack._MANIFEST_BYTES)
        pack._MANIFEST_BYTES = parts.MEBIBYTE - CAPACITY
        self.manifest = self.pack()
        os.makedirs(self.at("send99"))
        made = bundle.sends(self.parts, self.folder, self.manifest)
        self.assertGreater(len(made), 2)
        self.assertFalse(os.path.exists(self.at("send99")))
        for folder, part in zip(made, self.manifest.parts, strict=True):
            self.assertEqual(sorted(os.listdir(folder)), [part.file, parts.MANIFEST])
            self.assertTrue(os.path.isfile(os.path.join(folder, part.file)))
            if folder is not made[-1]:
                with self.assertRaises(unpack.MissingParts):
                    unpack.unpack(folder, self.root, say=lambda _: None)
        unpack.unpack(made[-1], self.root, say=lambda _: None)
        self.assertEqual(unpack.verify(made[-1], self.root), [])

    def test_a_link_and_a_tree_that_leaves_no_space_are_refused(self) -> None:
        with self.assertRaisesRegex(pack.PackError, "small one"):
            pack.pack([], self.at("work"), self.parts, "test", 60 * parts.MEBIBYTE)
        os.symlink("/etc/passwd", self.at("stage/bin/link"))
        with self.assertRaisesRegex(pack.PackError, "is a link"):
            self.pack()

    def test_a_part_above_the_limit_is_marked(self) -> None:
        table = pack.table(self.manifest, 2 * parts.MEBIBYTE)
        self.assertIn("TOO LARGE", table)
        self.assertNotIn("TOO LARGE", pack.table(self.manifest, 2_000))


class Unpacked(Case):
    """What unpacking makes of it."""

    def test_files_their_modes_and_the_filled_in_template(self) -> None:
        old = os.umask(0o077)
        self.addCleanup(os.umask, old)
        self.unpack()
        self.assertEqual(unpack.verify(self.parts, self.root), [])
        self.assertEqual(
            content(os.path.join(self.root, "browser/fonts.conf")).decode(),
            f"<dir>{self.root}/browser/fonts</dir>",
        )
        for path, mode in (
            ("", 0o755),
            ("bin", 0o755),
            ("bin/furrow", 0o755),
            ("browser/lib/libx.so", 0o644),
            ("site/deep/deep", 0o755),
            ("cache/fontconfig", 0o1777),
            ("browser/fonts.conf", 0o644),
        ):
            self.assertEqual(stat.S_IMODE(os.stat(os.path.join(self.root, path)).st_mode), mode, path)
        self.assertEqual(
            sorted(name for name in os.listdir(self.root) if name.startswith(".")), [".unpack-lock"]
        )

    def test_a_second_unpack_changes_nothing_and_needs_no_part(self) -> None:
        self.unpack()
        before = os.stat(os.path.join(self.root, "browser")).st_ino
        shutil.rmtree(self.parts)
        self.unpack()
        self.assertEqual(unpack.verify(self.parts, self.root), [])
        self.assertEqual(os.stat(os.path.join(self.root, "browser")).st_ino, before)

    def test_parts_that_come_one_by_one_in_any_order(self) -> None:
        self.addCleanup(setattr, pack, "_MANIFEST_BYTES", pack._MANIFEST_BYTES)
        pack._MANIFEST_BYTES = parts.MEBIBYTE - CAPACITY
        self.manifest = self.pack()
        self.assertGreater(len(self.manifest.parts), 4)
        kept = self.at("kept")
        os.rename(self.parts, kept)
        order = list(self.manifest.parts)
        random.Random(1).shuffle(order)
        came = set()
        for part in order:
            shutil.rmtree(self.parts, ignore_errors=True)
            os.makedirs(self.parts)
            for name in (parts.MANIFEST, part.file):
                shutil.copy(os.path.join(kept, name), self.parts)
            came.add(part.file)
            complete = [
                a for a in self.manifest.archives if {p.file for p in self.manifest.parts_of(a)} <= came
            ]
            if len(came) < len(order):
                with self.assertRaises(unpack.MissingParts) as missing:
                    self.unpack()
                needed = {
                    p.file
                    for a in self.manifest.archives
                    if a not in complete
                    for p in self.manifest.parts_of(a)
                }
                self.assertEqual({p.file for p in missing.exception.parts}, needed - came)
            else:
                self.unpack()
            for archive in self.manifest.archives:
                self.assertEqual(unpack.is_unpacked(self.root, archive), archive in complete)
        self.assertEqual(unpack.verify(self.parts, self.root), [])

    def test_a_damaged_part_is_named_and_a_good_one_mends_it(self) -> None:
        path = os.path.join(self.parts, self.manifest.parts[0].file)
        good = content(path)
        for bad in (good[:-1], good + b"x", good[:100] + bytes([good[100] ^ 1]) + good[101:]):
            write(path, bad)
            with self.assertRaisesRegex(unpack.UnpackError, self.manifest.parts[0].file):
                self.unpack()
            self.assertFalse(os.path.exists(os.path.join(self.root, "bin")))
        write(path, good)
        self.unpack()
        self.assertEqual(unpack.verify(self.parts, self.root), [])

    def test_another_build_replaces_what_changed_alone(self) -> None:
        self.unpack()
        before = {name: os.stat(os.path.join(self.root, name)).st_ino for name in ("bin", "browser", "site")}
        write(self.at("stage/bin/furrow"), b"new", 0o755)
        self.pack()
        self.assertEqual(len(unpack.verify(self.parts, self.root)), 1)
        self.unpack()
        self.assertEqual(content(os.path.join(self.root, "bin/furrow")), b"new")
        after = {name: os.stat(os.path.join(self.root, name)).st_ino for name in ("bin", "browser", "site")}
        self.assertEqual({name for name in before if before[name] != after[name]}, {"bin"})

    def test_verify_names_what_was_changed_added_and_removed(self) -> None:
        self.unpack()
        os.unlink(os.path.join(self.root, "browser/lib/libx.so"))
        write(os.path.join(self.root, "bin/more"), b"")
        write(os.path.join(self.root, "bin/__pycache__/more.pyc"), b"")
        os.chmod(os.path.join(self.root, "bin/furrow"), 0o700)
        wrong = unpack.verify(self.parts, self.root)
        self.assertEqual(
            [line.split(":")[0] for line in wrong], ["bin/more", "bin/furrow", "browser/lib/libx.so"]
        )

    def test_names_that_lead_out_and_what_is_no_file_are_refused(self) -> None:
        def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
            made = tarfile.TarInfo(name)
            made.type, made.linkname = kind, link
            return made

        # A path of its own, because others may use the folder for temporary files, too.
        outside = self.at("outside")
        hostile = [[member(name)] for name in ("../x", outside, "a/../../x", "a/./x", "a//x", parts.MARKER)]
        hostile += [
            [member("x", kind, "/etc")]
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
        ]
        hostile += [[member("x", tarfile.SYMTYPE, self.folder), member("x/y")]]
        for members in hostile:
            self.packed_by_hand(*members, files=len(members))
            with self.assertRaises(unpack.UnpackError, msg=members[0].name):
                self.unpack()
            self.assertFalse(os.path.exists(os.path.join(self.root, "bin")))
            self.assertFalse(os.path.exists(self.at("x")) or os.path.exists(outside))
        # Twice one name, more bytes than announced, and fewer.
        twice = [member("x"), member("x")]
        self.packed_by_hand(*twice, files=2)
        with self.assertRaises(OSError):
            self.unpack()
        large = member("x")
        large.size = 5_000
        for unpacked, files in ((4_999, 1), (5_001, 1), (5_000, 2)):
            self.packed_by_hand(large, unpacked=unpacked, files=files)
            with self.assertRaises(unpack.UnpackError):
                self.unpack()
        self.packed_by_hand(large, unpacked=5_000, files=1)
        self.unpack()

    def test_a_manifest_that_is_none_is_refused(self) -> None:
        path = os.path.join(self.parts, parts.MANIFEST)
        good = content(path).decode()
        for old, new in (
            ("001-", "../001-"),
            ('"bin"', '"../bin"'),
            ('"format": 1', '"format": 2'),
            ('"offset": 0', '"offset": 1'),
            ("{", ""),
            ('"limit": ', '"limit": -'),
            (self.manifest.parts[0].sha256, "0" * 63),
        ):
            write(path, good.replace(old, new, 1).encode())
            with self.assertRaises(parts.ManifestError, msg=new):
                self.unpack()
            self.assertFalse(os.path.exists(self.root))

    def test_a_root_that_the_browsers_user_cannot_reach_is_refused(self) -> None:
        os.mkdir(self.at("closed"), 0o700)
        self.root = self.at("closed/root")
        with self.assertRaisesRegex(unpack.UnpackError, "closed to the browser's user"):
            self.unpack()

    def test_killed_at_any_instant_the_next_run_ends_whole(self) -> None:
        # Large enough that a kill hits every step.
        write(self.at("stage/browser/large"), random.Random(2).randbytes(6 << 20))
        for index in range(200):
            write(self.at(f"stage/site/m{index}.py"), b"x = 1\n" * 100)
        self.pack()
        command = [sys.executable, BUNDLE, "unpack", "--parts", self.parts]
        environment = os.environ | {"FURROW_GPU_ROOT": self.root}
        began = time.monotonic()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        whole = time.monotonic() - began
        noise, killed = random.Random(3), 0
        for index in range(15):
            if index % 5 == 0:
                shutil.rmtree(self.root)
            child = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(noise.uniform(0, whole))
            child.send_signal(signal.SIGKILL)
            killed += child.wait() != 0
            # Whatever has its final name is whole.
            for archive in parts.read(os.path.join(self.parts, parts.MANIFEST)).archives:
                if os.path.exists(os.path.join(self.root, archive.name)):
                    self.assertTrue(unpack.is_unpacked(self.root, archive))
        self.assertGreater(killed, 3)
        self.unpack()
        self.assertEqual(unpack.verify(self.parts, self.root), [])
        self.assertEqual(
            sorted(name for name in os.listdir(self.root) if name.startswith(".")), [".unpack-lock"]
        )

    def test_the_exit_status_says_what_to_do(self) -> None:
        def status(*arguments: str) -> tuple[int, str]:
            ended = subprocess.run(
                [sys.executable, BUNDLE, *arguments, "--parts", self.parts],
                env=os.environ | {"FURROW_GPU_ROOT": self.root},
                capture_output=True,
                text=True,
                check=False,
            )
            return ended.returncode, ended.stdout + ended.stderr

        kept = self.at("kept.part")
        os.rename(os.path.join(self.parts, self.manifest.parts[-1].file), kept)
        os.rename(os.path.join(self.parts, parts.MANIFEST), self.at("manifest"))
        self.assertEqual(status("unpack")[0], 1)
        self.assertIn("travels with each part", status("verify")[1])
        os.rename(self.at("manifest"), os.path.join(self.parts, parts.MANIFEST))
        self.assertEqual(status("unpack")[0], bundle.MISSING)
        self.assertIn(f"missing {self.manifest.parts[-1].file}", status("unpack")[1])
        self.assertEqual(status("verify")[0], 1)
        write(os.path.join(self.parts, self.manifest.parts[-1].file), b"damaged")
        self.assertEqual(status("unpack")[0], 1)
        os.rename(kept, os.path.join(self.parts, self.manifest.parts[-1].file))
        self.assertEqual(status("unpack")[0], 0)
        self.assertEqual(status("verify")[0], 0)


class Pictures(unittest.TestCase):
    """Reading of PNG files."""

    @staticmethod
    def png(width: int, height: int, channels: int, raw: bytes, **changed: int) -> bytes:
        """A PNG file of filtered rows."""

        def chunk(kind: bytes, body: bytes) -> bytes:
            return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

        head = struct.pack(
            ">IIBBBBB", width, height, changed.get("depth", 8), {3: 2, 4: 6}[channels], 0, 0, 0
        )
        return (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", head)
            + chunk(b"IDAT", zlib.compress(raw))
            + chunk(b"IEND", b"")
        )

    def test_every_filter(self) -> None:
        noise = random.Random(5)
        for channels in (3, 4):
            width, height = 7, 10
            rows = [noise.randbytes(width * channels) for _ in range(height)]
            raw, above = b"", bytes(width * channels)
            for index, row in enumerate(rows):
                kind = index % 5
                raw += bytes([kind])
                for at, value in enumerate(row):
                    left = row[at - channels] if at >= channels else 0
                    corner = above[at - channels] if at >= channels else 0
                    nearest = min(
                        (left, above[at], corner), key=lambda guess: abs(left + above[at] - corner - guess)
                    )
                    raw += bytes(
                        [(value - (0, left, above[at], (left + above[at]) // 2, nearest)[kind]) & 255]
                    )
                above = row
            want = [bytes(v for at, v in enumerate(row) if channels == 3 or at % 4 != 3) for row in rows]
            self.assertEqual(picture.decode(self.png(width, height, channels, raw)), (width, height, want))

    def test_a_white_picture_has_one_colour(self) -> None:
        _, _, rows = picture.decode(self.png(4, 4, 3, (b"\0" + b"\xff" * 12) * 4))
        self.assertEqual(picture.colours(rows), {(255, 255, 255): 16})

    def test_what_is_no_picture_is_an_error(self) -> None:
        good = self.png(2, 2, 3, (b"\0" + bytes(6)) * 2)
        for bad in (
            b"",
            b"GIF89a",
            good[:40],
            good[:-30],
            self.png(2, 2, 3, b"\0" * 5),
            self.png(2, 2, 3, (b"\5" + bytes(6)) * 2),
            self.png(2, 2, 3, bytes(14), depth=4),
        ):
            with self.assertRaises(ValueError):
                picture.decode(bad)


if __name__ == "__main__":
    unittest.main()

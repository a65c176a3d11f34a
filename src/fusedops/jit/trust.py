# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whether other users could write to files and folders that code is loaded from.

What is in a cache is loaded and run, so only the user and root (who can do so anyway) may be able
to write there.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from pathlib import Path


def distrust(status: os.stat_result) -> str | None:
    """Why somebody else may write to the file or folder with this `status`; None if nobody may."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}, not to you ({os.geteuid()})"
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IWOTH:
        return f"everybody may write to it (mode {mode:o}; chmod go-w mends that)"
    if mode & stat.S_IWGRP and not _private_group(status.st_gid):
        return f"group {status.st_gid} may write to it (mode {mode:o}; chmod g-w mends that)"
    return None


def distrust_above(folder: Path) -> str | None:
    """Why somebody else may put another folder in the place of `folder`; None if nobody may.

    Groups are passed over here: projects share the folders above their members' own.

    Raises:
        OSError: There is no such folder, or no way to it.
    """
    for above in {*folder.parents, *folder.resolve().parents}:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            octal = f"{stat.S_IMODE(mode):o}"
            return f"everybody may rename what is in {above} (mode {octal}; chmod o-w mends that)"
    return None


def distrust_cache(root: Path) -> str | None:
    """Why the folder `root` is not used as a cache; None if it is.

    Raises:
        OSError: There is no such folder, or no way to it.
    """
    # It may itself be a link: to a folder of the user's own.
    return distrust(root.stat()) or distrust_above(root)


@functools.cache
def _private_group(gid: int) -> bool:
    """Whether the group is an ordinary user's alone.

    Distributions that set umask 002 give each user such a group: there, what a plain mkdir makes
    may be written by the group, and by nobody else for all that.
    """
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    alone = set(group.gr_mem) <= {user.pw_name}
    return user.pw_uid != 0 and (gid, group.gr_name) == (user.pw_gid, user.pw_name) and alone

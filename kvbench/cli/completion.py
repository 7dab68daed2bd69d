"""`kvbench completion SHELL`: a script that lets a shell ask kvbench itself what can stand where the cursor is."""

from collections.abc import Sequence

from kvbench.cli.errors import Exit
from kvbench.cli.usage import show
from kvbench.support.errors import UserError
from kvbench.support.nearest import closest

USAGE = """kvbench completion bash|zsh|fish: print the script that completes commands, flags, settings and their values.

Put one of these lines into the file that your shell reads when it starts:

  eval "$(kvbench completion bash)"        # ~/.bashrc
  eval "$(kvbench completion zsh)"         # ~/.zshrc, after compinit
  kvbench completion fish | source         # ~/.config/fish/config.fish

  kvbench run pol<TAB> -> policy=     kvbench run policy=sn<TAB> -> policy=snapkv     policy=h2o,sn<TAB> goes on
Names of plugins are completed like our own: the shell asks kvbench itself.
"""
ASK = "--ask"
"""What the scripts call: the words after it, the last of them unfinished, are answered with a candidate a line."""
BASH = r"""# kvbench completion for bash
_kvbench() {
    local line=${COMP_LINE:0:COMP_POINT} word found i IFS=$' \t\n'
    local -a words
    read -r -a words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word=${words[${#words[@]}-1]}
    local before=${word%"${word##*[=:]}"}  # readline replaces what comes after it
    [[ $COMP_WORDBREAKS == *=* ]] || before=
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("${found#"$before"}")
    done < <("${words[0]}" completion --ask "${words[@]:1}" 2> /dev/null)
    for i in "${COMPREPLY[@]}"; do
        [[ $i == *[=./] ]] && type compopt &> /dev/null && compopt -o nospace 2> /dev/null
    done
    return 0
}
complete -o default -F _kvbench kvbench
"""
ZSH = r"""#compdef kvbench
# kvbench completion for zsh
_kvbench() {
    local -a found
    found=("${(@f)$("${words[1]}" completion --ask "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    found=(${found:#})
    if (( ! ${#found} )); then
        _files
        return
    fi
    local -a whole=(${found:#*[=./]}) open=(${(M)found:#*[=./]})
    (( ${#open} )) && compadd -Q -S '' -- "${open[@]}"
    (( ${#whole} )) && compadd -Q -- "${whole[@]}"
}
if [[ ${funcstack[1]} == _kvbench ]]; then _kvbench "$@"; else compdef _kvbench kvbench; fi
"""
FISH = r"""# kvbench completion for fish
function __kvbench_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] completion --ask $words[2..-1] 2> /dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c kvbench -f -a '(__kvbench_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def main(arguments: Sequence[str]) -> int:
    """Print a script, or candidates for a script that asks. Raises ValueError for a shell that is not known."""
    if arguments and arguments[0] == ASK:
        from kvbench.cli.completing import candidates

        print("".join(f"{word}\n" for word in candidates(arguments[1:])), end="")
        return Exit.OK
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return Exit.OK if arguments else Exit.USAGE
    shell, *rest = arguments
    if shell not in SCRIPTS or rest:
        raise UserError(f"no completion for {' '.join(arguments)}: {closest(shell, SCRIPTS)}")
    print(SCRIPTS[shell], end="")
    return Exit.OK

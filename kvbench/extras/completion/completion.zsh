#compdef kvbench
# kvbench completion for zsh
_kvbench() {
    local -a candidates
    candidates=("${(@f)$("${words[1]}" completion --ask "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    candidates=(${candidates:#})
    if (( ! ${#candidates} )); then
        _files
        return
    fi
    local -a finished=(${candidates:#*[=./]}) unfinished=(${(M)candidates:#*[=./]})
    (( ${#unfinished} )) && compadd -Q -S '' -- "${unfinished[@]}"
    (( ${#finished} )) && compadd -Q -- "${finished[@]}"
}
if [[ ${funcstack[1]} == _kvbench ]]; then _kvbench "$@"; else compdef _kvbench kvbench; fi

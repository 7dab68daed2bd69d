# kvbench completion for fish
function __kvbench_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l candidates ($words[1] completion --ask $words[2..-1] 2> /dev/null)
    if test (count $candidates) -gt 0
        printf '%s\n' $candidates
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c kvbench -f -a '(__kvbench_complete)'

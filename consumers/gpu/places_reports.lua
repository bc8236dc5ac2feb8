-- What workers have lately said of the replicas. ARGV: prefix, how old a report may be in ms
-- Returns {now, name, report, ...}
local now, answer = now_ms(), {}
answer[1] = now
local all = redis.call('HGETALL', P .. 'fleet')
for i = 1, #all, 2 do
  local at, report = string.match(all[i + 1], '^(%S+) (.*)$')
  if now - tonumber(at) <= tonumber(ARGV[2]) then
    answer[#answer + 1] = all[i]
    answer[#answer + 1] = report
  end
end
return answer

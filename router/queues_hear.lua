-- What was said there in the last ms. KEYS[1]: a hash. ARGV: ms. Returns {now, name, when, text, ...}
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local answer = {now}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local at, text = string.match(all[i + 1], '^(%S+) (.*)$')
  if now - tonumber(at) <= tonumber(ARGV[1]) then
    answer[#answer + 1] = all[i]
    answer[#answer + 1] = at
    answer[#answer + 1] = text
  end
end
return answer
